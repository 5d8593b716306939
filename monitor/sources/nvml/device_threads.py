"""Who reads which device: one thread all of them, but for those whose driver call hangs."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ...snapshot.snapshot import NO_ANSWER, Fault, GpuReading
from .call_threads import CallThread
from .device import NvmlDevice

READ_TIMEOUT_SECONDS = 1.0
"""A device that takes longer to read is one whose driver hangs; a reading takes milliseconds."""
FIRST_READ_TIMEOUT_SECONDS = 5.0
"""The same at the first reading: without persistence mode the driver starts a GPU when it is first asked for."""


class DeviceThreads:
    """The threads that read devices.

    Usually it is one. A device that holds it up keeps it: the others are read by a fresh one from then on, and the
    first one threads its reading in when the driver comes back, and serves this device alone.

    Args:
        thread: the first thread.
        timeout: seconds before a device counts as hanging.
        first_timeout: the same at its first reading.
    """

    def __init__(self, thread: CallThread, *, timeout: float, first_timeout: float) -> None:
        self._thread = thread
        self._timeout = timeout
        self._first_timeout = first_timeout
        self._rounds: dict[NvmlDevice, _ReadingPass] = {}
        """Of the devices that have held up a thread, on that thread."""
        self._last: dict[NvmlDevice, GpuReading] = {}
        self._left: list[CallThread] = []
        """Held up by devices that are no more."""

    def read(self, devices: Sequence[NvmlDevice]) -> list[GpuReading]:
        """A row for each device; of one that hangs, the figures from before and how long it has.

        Raises:
            NVMLError: NVML as a whole does not answer.
        """
        self._forget_all_but(devices)
        apart = [self._again(device, round_) for device, round_ in self._rounds.items() if self._collect(round_)]
        together = [device for device in devices if device not in self._rounds]
        if together:
            self._read_together(together)
        for round_ in apart:
            if self._is_back(round_):
                self._collect(round_)
        return [self._row(device) for device in devices]

    def close(self) -> list[CallThread]:
        """End all threads; gives those with a call under way, which end when it comes back."""
        threads = [self._thread, *self._left, *(round_.thread for round_ in self._rounds.values())]
        for thread in threads:
            thread.stop()
        return [thread for thread in threads if not thread.idle]

    def _read_together(self, devices: Sequence[NvmlDevice]) -> None:
        """All on one thread; when one of them holds it up, each of the rest on a thread of its own, this once."""
        round_ = _ReadingPass(self._thread, devices)
        if not self._is_back(round_):
            rest = round_.cut()
            if not round_.thread.idle:
                self._keep_apart(round_)
                self._thread = CallThread()
            singles = [_ReadingPass(CallThread(), (device,)) for device in rest]
            for single in singles:
                if self._is_back(single):
                    self._collect(single)
                    single.thread.stop()
                else:
                    self._keep_apart(single)
        self._collect(round_)

    def _is_back(self, round_: "_ReadingPass") -> bool:
        """Wait until the round is over or one of its devices takes too long; whether it is over."""
        while not round_.thread.wait(round_.since + self._timeout_for(round_.device) - time.monotonic()):
            if time.monotonic() - round_.since >= self._timeout_for(round_.device):
                return False
        return True

    def _timeout_for(self, device: NvmlDevice) -> float:
        return self._timeout if device in self._last else self._first_timeout

    def _keep_apart(self, round_: "_ReadingPass") -> None:
        self._rounds[round_.device] = round_

    def _again(self, device: NvmlDevice, before: "_ReadingPass") -> "_ReadingPass":
        round_ = self._rounds[device] = _ReadingPass(before.thread, (device,))
        return round_

    def _collect(self, round_: "_ReadingPass") -> bool:
        """Take what the round has read so far; whether it is over."""
        over = round_.thread.idle
        self._last.update(round_.readings.copy())
        if over:
            round_.thread.result()
        return over

    def _row(self, device: NvmlDevice) -> GpuReading:
        last, round_ = self._last.get(device), self._rounds.get(device)
        if round_ is None or round_.thread.idle:
            return last or device.missing()
        return _hung_threads(device, last, time.monotonic() - round_.since)

    def _forget_all_but(self, devices: Sequence[NvmlDevice]) -> None:
        for device in [device for device in self._last if device not in devices]:
            del self._last[device]
        for device in [device for device in self._rounds if device not in devices]:
            thread = self._rounds.pop(device).thread
            thread.stop()
            self._left.append(thread)
        self._left = [thread for thread in self._left if not thread.idle]


class _ReadingPass:
    """One reading of these devices, one after the other, on one thread; begun at once."""

    def __init__(self, thread: CallThread, devices: Sequence[NvmlDevice]) -> None:
        self.thread = thread
        self.readings: dict[NvmlDevice, GpuReading] = {}
        self.device = devices[0]
        """The one being read."""
        self.since = time.monotonic()
        """When that began."""
        self._ahead = deque(devices)
        thread.run(self._read)

    def cut(self) -> list[NvmlDevice]:
        """Read no more than the device under way; gives those that are left."""
        left = []
        while self._ahead:
            try:
                left.append(self._ahead.popleft())
            except IndexError:  # the last one was begun just now
                break
        return left

    def _read(self) -> None:
        directory = self.thread.process_directory
        while self._ahead:
            try:
                device = self._ahead.popleft()
            except IndexError:  # taken away just now
                break
            self.since = time.monotonic()  # before the device, which is then never taken for a slow one
            self.device = device
            self.readings[device] = device.read(directory.describe)
        directory.end_tick()


def _hung_threads(device: NvmlDevice, last: GpuReading | None, seconds: float) -> GpuReading:
    """Its row with the figures from before, if there are any, and why there are no new ones."""
    call = device.pending_call or "reading it"
    figures = "nothing is known of it yet" if last is None or last.total_bytes is None else "its figures are old"
    message = f"the driver hangs on this GPU: {call} has not come back for {seconds:.0f} s; {figures}"
    fault = Fault(field=None, code=NO_ANSWER, message=message)
    row = last or device.missing()
    return replace(row, faults=(fault, *(row.faults if last else ())))
