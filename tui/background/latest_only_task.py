"""Slow work off the UI thread: one task at a time, and of those that wait only the newest."""

import contextlib
import threading
from collections.abc import Callable

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CancelledError

Task = Callable[[], None]


class LatestOnlyTask:
    """Runs tasks on a daemon thread of its own, so that a slow one holds up neither the screen nor quitting.

    A task that is submitted while another runs replaces the one that waits. Nothing runs until the first ``submit``,
    and the thread ends when there is no more to do.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: Task | None = None
        self._running = False
        self._cancel = CancelToken()

    def submit(self, task: Task) -> None:
        """Run the task as soon as the one that runs has ended, unless a newer one comes before that."""
        with self._lock:
            self._waiting = task
            if not self._running:
                self._start()

    def interrupt(self) -> None:
        """Drop the task that waits, and have the one that runs give up what it waits for: a worker is ended."""
        with self._lock:
            self._waiting = None
            cancel, self._cancel = self._cancel, CancelToken()
        cancel.cancel()

    def _start(self) -> None:
        self._running = True
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        done = False
        try:
            while taken := self._take():
                task, cancel = taken
                with cancel.scope(), contextlib.suppress(CancelledError):
                    task()
            done = True
        finally:
            if not done:  # a bug in a task ends its thread; what waits gets a new one
                self._recover()

    def _take(self) -> tuple[Task, CancelToken] | None:
        with self._lock:
            task, self._waiting = self._waiting, None
            self._running = task is not None
            return None if task is None else (task, self._cancel)

    def _recover(self) -> None:
        with self._lock:
            self._running = False
            if self._waiting:
                self._start()
