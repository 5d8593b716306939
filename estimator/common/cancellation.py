"""Cancels an estimate from another thread: its worker process is killed, and its caller gets a ``CancelledError``."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import CancelledError, VramtopError

_CURRENT: ContextVar["CancelToken | None"] = ContextVar("cancel", default=None)


class CancelToken:
    """Cancels what runs in its scope.

    >>> token = CancelToken()
    >>> with token.scope():
    ...     budget = estimate(job, method="traced")  # another thread may call token.cancel()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """True once ``cancel`` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Cancel what runs in the scope, now and later; any thread may call it, also more than once."""
        with self._lock:
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Make this the token of what the thread runs in the block."""
        previous = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(previous)

    @contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` if the token is cancelled while this thread runs the block.

        Raises:
            CancelledError: it was cancelled before, or the block failed because it was.
        """
        with self._lock:
            if self._cancelled:
                raise CancelledError("cancelled before it began")
            self._callbacks.append(callback)
        try:
            yield
        except VramtopError:
            if self._cancelled:
                raise CancelledError("given up") from None
            raise
        finally:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)


def current_token() -> CancelToken:
    """Return the token of the scope that this runs in; outside of any scope, one that is never cancelled."""
    return _CURRENT.get() or CancelToken()
