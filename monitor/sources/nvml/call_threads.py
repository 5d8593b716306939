"""Threads that make the driver's calls, so that whoever needs an answer can go on without one that does not come."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from ...host.processes import ProcessDirectory


class CallThread:
    """A daemon thread that does one piece of work at a time.

    A driver's call that hangs can be neither ended nor taken back: the thread is left to it, and dies with the program.
    """

    def __init__(self) -> None:
        self.process_directory = ProcessDirectory()
        """For what is done on this thread; not for several."""
        self._orders: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._answer: Any = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self._idle.is_set()

    def run(self, work: Callable[[], Any]) -> None:
        """Do this; nothing else may be under way."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="vramtop-nvml", daemon=True)
            self._thread.start()
        self._idle.clear()
        self._orders.put(work)

    def wait(self, seconds: float) -> bool:
        """Whether the work is done, after at most so many seconds."""
        return self._idle.wait(max(0.0, seconds))

    def result(self) -> Any:
        """What the work returned, or the exception that ended it, raised; once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._answer

    def stop(self) -> None:
        """End the thread, when what is under way has come back."""
        self._orders.put(None)

    def _serve(self) -> None:
        while (work := self._orders.get()) is not None:
            try:
                self._answer = work()
            except BaseException as error:  # noqa: BLE001 - raised again on the thread that takes the answer
                self._failure = error
            self._idle.set()


def shut_down(nvml: Any) -> None:
    """Shut NVML down; no call of it may be under way.

    Args:
        nvml: the ``pynvml`` module.
    """
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return  # it was not running any more, which is what is wanted
