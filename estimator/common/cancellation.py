"""Giving an estimate up from another thread: its worker is ended, and what waits for it raises ``CancelledError``."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import CancelledError, VramtopError

_CURRENT: ContextVar["CancelToken | None"] = ContextVar("cancel", default=None)


class CancelToken:
    """Gives up what runs in its scope.

    >>> cancel = CancelToken()
    >>> with cancel.scope():
    ...     budget = estimate(job, method="traced")  # another thread may call cancel.cancel()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enders: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """It was given up."""
        return self._cancelled

    def cancel(self) -> None:
        """End what runs in the scope now, and what begins there later; may be called from any thread, and twice."""
        with self._lock:
            self._cancelled = True
            enders, self._enders = self._enders, []
        for end in enders:
            end()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What this thread does in here can be given up."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def on_cancel(self, end: Callable[[], None]) -> Iterator[None]:
        """``end`` is called when it is given up while this thread is in here.

        Raises:
            CancelledError: it was given up before, or what ran in here failed because it was.
        """
        with self._lock:
            if self._cancelled:
                raise CancelledError("given up before it began")
            self._enders.append(end)
        try:
            yield
        except VramtopError:
            if self._cancelled:
                raise CancelledError("given up") from None
            raise
        finally:
            with self._lock:
                if end in self._enders:
                    self._enders.remove(end)


def current_token() -> CancelToken:
    """That of the scope in which this runs; outside of any, one that nobody cancels."""
    return _CURRENT.get() or CancelToken()
