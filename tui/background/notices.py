"""Sentences for the user from any thread, also while the screen is still being made."""

import threading
from collections.abc import Callable, Iterable


class Notices:
    """Sentences that are kept until there is a screen to show them on.

    Args:
        sentences: the first ones.
    """

    def __init__(self, sentences: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._kept = list(sentences)
        self._show: Callable[[str], None] | None = None

    def add(self, sentence: str) -> None:
        """Show a sentence now, or once there is a screen."""
        with self._lock:
            if self._show is None:
                self._kept.append(sentence)
                return
        self._show(sentence)  # outside of the lock: it may wait for the screen's thread

    def show_on(self, show: Callable[[str], None]) -> tuple[str, ...]:
        """Pass every further sentence to this callback, on the thread that adds it; returns those until now."""
        with self._lock:
            self._show = show
            return tuple(self._kept)
