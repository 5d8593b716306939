"""Slow work off the UI thread: ``LatestOnlyTask`` runs only the latest request, ``TaskThread`` runs all in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CancelledError, VramtopError
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread

Result = TypeVar("Result")
CallLater = Callable[..., object]
"""``call_later`` of a Textual widget: calls a function on the UI thread; safe to call from any thread."""


class TaskThread:
    """Runs tasks one after another on a daemon thread, which starts with a task and ends when none is left.

    A slow task delays neither the screen nor quitting. An exception in a task goes to ``threading.excepthook``, and the
    next task runs.

    Args:
        name: name of the thread.
        most_waiting: tasks that may wait; None: any number.
    """

    def __init__(self, name: str, most_waiting: int | None = None) -> None:
        self._name = name
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], None]] = deque()
        self._running = False

    def submit(self, task: Callable[[], None]) -> bool:
        """Run the task after all those submitted before it; False: too many wait already.

        Raises:
            ProcessLimitError: the thread cannot be started.
        """
        with self._lock:
            if self._most_waiting is not None and len(self._tasks) >= self._most_waiting:
                return False
            if not self._running:
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
                self._running = True
            self._tasks.append(task)
        return True

    def clear(self) -> None:
        """Drop all tasks that have not started."""
        with self._lock:
            self._tasks.clear()

    def _run(self) -> None:
        while task := self._next():
            try:
                task()
            except Exception as error:  # noqa: BLE001 - reported, so that the next task still runs
                details = (type(error), error, error.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(details))

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._running = bool(self._tasks)
            return self._tasks.popleft() if self._tasks else None


class LatestOnlyTask(Generic[Result]):
    """Runs requests off the UI thread; only the latest request runs, and only its result is delivered.

    A request cancels the one before it, whether that one runs or waits. A result goes through the message queue of a
    widget to the UI thread, and is discarded there if there was another request in the meantime.

    Args:
        name: name of the thread.
        call_later: ``call_later`` of the widget that shows the results.
        on_result: receives each result on the UI thread; may be a coroutine function.
        on_error: receives the message of a VramtopError, likewise; None: such an error is a bug in the request.
    """

    def __init__(
        self,
        name: str,
        call_later: CallLater,
        on_result: Callable[[Result], object],
        on_error: Callable[[str], object] | None = None,
    ) -> None:
        self._thread = TaskThread(name)
        self._call_later = call_later
        self._on_result = on_result
        self._on_error = on_error
        self._latest = 0
        """Number of the latest request."""
        self._token = CancelToken()

    def submit(self, work: Callable[[], Result]) -> None:
        """Run this request in place of all earlier ones, and deliver its result."""
        self.submit_with_progress(lambda report: report(work()))

    def submit_with_progress(self, work: Callable[[Callable[[Result], None]], None]) -> None:
        """Run a request with several results; ``work`` calls its argument with each of them.

        That call raises CancelledError once the request has been cancelled.
        """
        self.cancel()
        number, token = self._latest, self._token
        try:
            self._thread.submit(lambda: self._run(work, number, token))
        except ProcessLimitError as error:
            if self._on_error is None:
                raise
            self._call_later(self._call_if_latest, number, self._on_error, error.message)

    def cancel(self) -> None:
        """Cancel the request that runs or waits: its worker process is terminated, and no result is delivered."""
        self._latest += 1
        self._thread.clear()
        cancelled, self._token = self._token, CancelToken()
        cancelled.cancel()

    def _run(self, work: Callable[[Callable[[Result], None]], None], number: int, token: CancelToken) -> None:
        def deliver(callback: Callable[[Any], object], value: object) -> None:
            if token.cancelled:
                raise CancelledError("a newer request came in")
            self._call_later(self._call_if_latest, number, callback, value)

        with token.scope(), suppress(CancelledError):
            try:
                work(lambda result: deliver(self._on_result, result))
            except CancelledError:
                raise
            except VramtopError as error:
                if self._on_error is None:
                    raise
                deliver(self._on_error, error.message)

    def _call_if_latest(self, number: int, callback: Callable[[Any], object], value: object) -> object:
        return callback(value) if number == self._latest else None
