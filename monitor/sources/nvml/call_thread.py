"""Threads for driver calls that may hang, so that the caller can give up waiting."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from vramtop.estimator.common.process_limit import start_thread

from ...host.process_directory import ProcessDirectory


class CallThread:
    """A daemon thread that runs one function at a time.

    A driver call that hangs can be neither ended nor cancelled: its thread is abandoned, and ends with the program.
    """

    def __init__(self) -> None:
        self.process_directory = ProcessDirectory()
        """For functions that run on this thread; not thread-safe."""
        self._queue: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """True if no function is running."""
        return self._idle.is_set()

    def run(self, function: Callable[[], Any]) -> None:
        """Run a function on the thread, which must be idle.

        Raises:
            ProcessLimitError: the thread cannot be started.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="vramtop-nvml", daemon=True)
            start_thread(thread)
            self._thread = thread
        self._idle.clear()
        self._queue.put(function)

    def wait(self, seconds: float) -> bool:
        """Wait until the function has returned, for ``seconds`` at most; returns True if it has."""
        return self._idle.wait(max(0.0, seconds))

    def result(self) -> Any:
        """Return what the function returned; raises its exception, once, if it raised one."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result

    def stop(self) -> None:
        """End the thread once the running function has returned."""
        self._queue.put(None)

    def _serve(self) -> None:
        while (function := self._queue.get()) is not None:
            try:
                self._result = function()
            except BaseException as error:  # noqa: BLE001 - raised again by result()
                self._error = error
            self._idle.set()


def shut_down(nvml: Any) -> None:
    """Shut NVML down; none of its calls may be running.

    Args:
        nvml: the ``pynvml`` module.
    """
    with contextlib.suppress(nvml.NVMLError):  # already shut down
        nvml.nvmlShutdown()
