"""Reads a source before there is anybody to show it to: the rest of the program is loaded meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.estimator.errors import VramtopError

    from .snapshot import Snapshot
    from .source import SnapshotSource


class HeadStart:
    """A sampler that begins at once, and whose newest answer waits for whoever takes over.

    Args:
        source: what to read; nobody else may use it.
        interval: seconds between the starts of two readings.
    """

    def __init__(self, source: SnapshotSource, interval: float) -> None:
        self._lock = threading.Lock()
        self._newest: Snapshot | VramtopError | None = None
        self._on_snapshot: Callable[[Snapshot], None] = self._keep
        self._on_error: Callable[[VramtopError], None] = self._keep
        self.sampler = Sampler(source, interval, self._pass_snapshot, self._pass_error)
        """Runs already."""
        self.sampler.start()

    def take_over(
        self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[VramtopError], None]
    ) -> Snapshot | VramtopError | None:
        """Whatever comes from here on goes to these, on the sampler's thread.

        Returns:
            The newest of what came before: a snapshot, or why there is none; None: nothing has come yet.
        """
        with self._lock:
            self._on_snapshot, self._on_error = on_snapshot, on_error
            return self._newest

    def _keep(self, answer: Snapshot | VramtopError) -> None:
        self._newest = answer

    def _pass_snapshot(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._on_snapshot(snapshot)

    def _pass_error(self, error: VramtopError) -> None:
        with self._lock:
            self._on_error(error)
