"""Threads that read the devices: one for all of them, and one for each device whose driver call hangs."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from vramtop.estimator.common.process_limit import start_thread
from vramtop.estimator.common.records import replace

from ...host.process_directory import ProcessDirectory
from ...snapshot.figures import NO_ANSWER, Fault
from ...snapshot.snapshot import GpuReading
from .device import NvmlDevice

READ_TIMEOUT_SECONDS = 1.0
"""A device that takes longer to read counts as hanging; a reading takes milliseconds."""
FIRST_READ_TIMEOUT_SECONDS = 5.0
"""Timeout of the first reading: without persistence mode the driver starts a GPU when it is first queried."""


class DeviceThreads:
    """The threads that read the devices.

    Usually one thread reads all devices. A device that hangs keeps the thread: a new thread reads the other devices
    from then on, and the old one reads this device alone as soon as the driver call returns.

    Args:
        thread: the first thread.
        timeout: seconds after which a device counts as hanging.
        first_timeout: seconds at its first reading.
    """

    def __init__(self, thread: CallThread, *, timeout: float, first_timeout: float) -> None:
        self._thread = thread
        self._timeout = timeout
        self._first_timeout = first_timeout
        self._separate: dict[NvmlDevice, _ReadingPass] = {}
        """Latest pass of each device that has its own thread because it has hung."""
        self._last: dict[NvmlDevice, GpuReading] = {}
        self._abandoned: list[CallThread] = []
        """Threads on which devices hang that no longer exist."""

    def read(self, devices: Sequence[NvmlDevice]) -> list[GpuReading]:
        """Return a reading of each device; for one that hangs, its last figures and the time since then.

        Raises:
            NVMLError: NVML as a whole does not answer.
        """
        self._forget_removed(devices)
        separate = [self._read_again(device, last) for device, last in self._separate.items() if self._collect(last)]
        together = [device for device in devices if device not in self._separate]
        if together:
            self._read_together(together)
        for reading_pass in separate:
            if self._wait_for(reading_pass):
                self._collect(reading_pass)
        return [self._reading(device) for device in devices]

    def close(self) -> list[CallThread]:
        """Stop all threads; returns those with a running call, which end when it returns."""
        threads = [self._thread, *self._abandoned, *(each.thread for each in self._separate.values())]
        for thread in threads:
            thread.stop()
        return [thread for thread in threads if not thread.idle]

    def _read_together(self, devices: Sequence[NvmlDevice]) -> None:
        """Read all on one thread; if one of them hangs, read each of the others on its own thread, this time only."""
        together = _ReadingPass(self._thread, devices)
        if not self._wait_for(together):
            remaining = together.cancel_remaining()
            if not together.thread.idle:
                self._separate[together.device] = together
                self._thread = CallThread()
            for single in [_ReadingPass(CallThread(), (device,)) for device in remaining]:
                if self._wait_for(single):
                    self._collect(single)
                    single.thread.stop()
                else:
                    self._separate[single.device] = single
        self._collect(together)

    def _wait_for(self, reading_pass: _ReadingPass) -> bool:
        """Wait until the pass has finished or one of its devices takes too long; returns True if it has finished."""
        while True:
            deadline = reading_pass.since + self._timeout_for(reading_pass.device)
            if reading_pass.thread.wait(deadline - time.monotonic()):
                return True
            if time.monotonic() - reading_pass.since >= self._timeout_for(reading_pass.device):
                return False

    def _timeout_for(self, device: NvmlDevice) -> float:
        return self._timeout if device in self._last else self._first_timeout

    def _read_again(self, device: NvmlDevice, last: _ReadingPass) -> _ReadingPass:
        reading_pass = self._separate[device] = _ReadingPass(last.thread, (device,))
        return reading_pass

    def _collect(self, reading_pass: _ReadingPass) -> bool:
        """Store the readings of a pass so far; returns True if it has finished."""
        finished = reading_pass.thread.idle
        self._last.update(reading_pass.readings.copy())
        if finished:
            reading_pass.thread.result()
        return finished

    def _reading(self, device: NvmlDevice) -> GpuReading:
        last, reading_pass = self._last.get(device), self._separate.get(device)
        if reading_pass is None or reading_pass.thread.idle:
            return last or device.missing()
        return _stale_reading(device, last, time.monotonic() - reading_pass.since)

    def _forget_removed(self, devices: Sequence[NvmlDevice]) -> None:
        for device in [device for device in self._last if device not in devices]:
            del self._last[device]
        for device in [device for device in self._separate if device not in devices]:
            thread = self._separate.pop(device).thread
            thread.stop()
            self._abandoned.append(thread)
        self._abandoned = [thread for thread in self._abandoned if not thread.idle]


class _ReadingPass:
    """One reading of some devices, one after the other, on one thread; starts at once."""

    def __init__(self, thread: CallThread, devices: Sequence[NvmlDevice]) -> None:
        self.thread = thread
        self.readings: dict[NvmlDevice, GpuReading] = {}
        self.device = devices[0]
        """The device that is being read."""
        self.since = time.monotonic()
        """When the reading of that device began."""
        self._remaining = deque(devices)
        thread.run(self._read)

    def cancel_remaining(self) -> list[NvmlDevice]:
        """Read no device after the current one; returns those that are not read."""
        remaining = []
        while self._remaining:
            try:
                remaining.append(self._remaining.popleft())
            except IndexError:  # the thread has just taken the last one
                break
        return remaining

    def _read(self) -> None:
        directory = self.thread.process_directory
        while self._remaining:
            try:
                device = self._remaining.popleft()
            except IndexError:  # cancelled just now
                break
            self.since = time.monotonic()  # set before the device, so that it never counts as slow too early
            self.device = device
            self.readings[device] = device.read(directory.describe)
        directory.end_tick()


def _stale_reading(device: NvmlDevice, last: GpuReading | None, seconds: float) -> GpuReading:
    """Return the last reading of a device that hangs, if there is one, with a fault that gives the reason."""
    call = device.pending_call or "reading it"
    figures = "it has no figures yet" if last is None or last.total_bytes is None else "its figures are old"
    message = f"the driver hangs on this GPU: {call} has not returned for {seconds:.0f} s; {figures}"
    fault = Fault(field=None, code=NO_ANSWER, message=message)
    reading = last or device.missing()
    return replace(reading, faults=(fault, *(reading.faults if last else ())))


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
