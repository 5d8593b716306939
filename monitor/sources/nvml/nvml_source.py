"""Live snapshots of this machine's GPUs through NVML (libnvidia-ml, by way of pynvml)."""

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread
from vramtop.estimator.common.records import replace

from ...host.inspect.host_figures import HostFigures
from ...host.process_directory import ProcessDirectory
from ...probe.probe_directory import ProbeDirectory
from ...snapshot.demand import CurrentDemand
from ...snapshot.faults import NO_ANSWER, NOT_LISTED, Fault
from ...snapshot.snapshot import GpuReading, Snapshot, Source
from .device import NvmlDevice, driver_addresses
from .device_calls import MACHINE_CODES, code_of, driver_hang_error, no_driver_error

# Threads for driver calls that may hang, so that the caller can give up waiting.


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
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return  # already shut down


# Threads that read the devices: one for all of them, and one for each device whose driver call hangs.


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

    def _wait_for(self, reading_pass: "_ReadingPass") -> bool:
        """Wait until the pass has finished or one of its devices takes too long; returns True if it has finished."""
        while True:
            deadline = reading_pass.since + self._timeout_for(reading_pass.device)
            if reading_pass.thread.wait(deadline - time.monotonic()):
                return True
            if time.monotonic() - reading_pass.since >= self._timeout_for(reading_pass.device):
                return False

    def _timeout_for(self, device: NvmlDevice) -> float:
        return self._timeout if device in self._last else self._first_timeout

    def _read_again(self, device: NvmlDevice, last: "_ReadingPass") -> "_ReadingPass":
        reading_pass = self._separate[device] = _ReadingPass(last.thread, (device,))
        return reading_pass

    def _collect(self, reading_pass: "_ReadingPass") -> bool:
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


COUNT_INTERVAL_SECONDS = 10.0
"""Interval of counting the devices, which may come and go while vramtop runs."""
_SHUTDOWN_TIMEOUT_SECONDS = 0.5
"""How long ``close`` waits for NVML to shut down; its thread ends with the program at the latest."""


class NvmlSource:
    """This machine's GPUs. Not thread-safe; driver calls are made on other threads, as they may hang.

    Args:
        clock: monotonic seconds.
        now: Unix seconds.
        timeout: seconds after which a driver call that has worked before counts as hanging.
        first_timeout: seconds after which a driver that is starting counts as hanging.
        demand: what readings are to contain beyond memory.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        timeout: float = READ_TIMEOUT_SECONDS,
        first_timeout: float = FIRST_READ_TIMEOUT_SECONDS,
        demand: CurrentDemand | None = None,
    ) -> None:
        self._demand = demand or CurrentDemand()
        self._host_figures = HostFigures(clock=clock)
        self._clock = clock
        self._now = now
        self._timeout = timeout
        self._first_timeout = first_timeout
        self._probes = ProbeDirectory(clock=clock, now=now)
        self._nvml: Any = None
        self._source = Source(kind="nvml", host=os.uname().nodename)
        self._devices: list[NvmlDevice] = []
        self._device_threads: DeviceThreads | None = None
        self._startup: _NvmlStartup | None = None
        """A start of NVML that has not finished."""
        self._count_thread = CallThread()
        self._count_since: float | None = None
        """When the running count began, in ``time.monotonic()``; None: none is running."""
        self._next_count_at = 0.0
        self._count_fault: Fault | None = None
        self._earlier_readings: list[GpuReading] = []
        """Readings, without figures, of devices that may no longer be listed since the last count."""
        self._unlisted: list[GpuReading] = []
        """Readings, without figures, of devices that the driver no longer lists."""
        self._hung_threads: list[CallThread] = []
        """Threads with a driver call that has been running since before the last ``close``."""
        self._was_open = False

    def open(self) -> None:
        """Start NVML and count the devices.

        Raises:
            NoDriverError: there is no usable driver, or it does not answer; the message states why.
        """
        count = self._start()
        self._find_devices(count)
        self._was_open = True

    def read(self) -> Snapshot:
        """Return a snapshot of all GPUs. NVML is started again if something else has shut it down.

        Raises:
            NoDriverError: the driver disappeared; ``open`` may find it again.
        """
        nvml = self._nvml
        try:
            try:
                return self._read()
            except nvml.NVMLError_Uninitialized:
                self._find_devices(self._start())
                return self._read()
        except nvml.NVMLError as error:
            raise no_driver_error(nvml, error, was_open=True) from None

    def close(self) -> None:
        """Shut NVML down, unless one of its calls is still running, as that would break the call."""
        self._probes.close()
        if self._device_threads is not None:
            self._hung_threads += self._device_threads.close()
        self._device_threads = None
        if not self._count_thread.idle:
            self._hung_threads.append(self._count_thread)
        self._count_thread.stop()
        self._count_thread, self._count_since = CallThread(), None
        self._hung_threads = [thread for thread in self._hung_threads if not thread.idle]
        nvml, self._nvml = self._nvml, None
        self._devices, self._unlisted, self._earlier_readings = [], [], []
        if nvml is not None and not self._hung_threads and self._startup is None:
            thread = CallThread()
            with contextlib.suppress(ProcessLimitError):  # then NVML is shut down when the program ends
                thread.run(lambda: shut_down(nvml))
            thread.stop()
            if not thread.wait(_SHUTDOWN_TIMEOUT_SECONDS):
                self._hung_threads.append(thread)

    def _start(self) -> int:
        """Initialise NVML on the thread that will read the devices; returns their number."""
        import pynvml  # not at import time: a replay does not need it

        fresh = self._startup is None
        start = self._startup = self._startup or _NvmlStartup(pynvml)
        if not start.thread.wait(self._first_timeout if fresh else 0.0):
            raise driver_hang_error(start.call, time.monotonic() - start.since)
        self._startup = None
        try:
            self._source, count = start.thread.result()
        except pynvml.NVMLError as error:
            start.thread.stop()
            raise no_driver_error(pynvml, error, was_open=self._was_open) from None
        self._nvml = pynvml
        if self._device_threads is not None:
            self._hung_threads += self._device_threads.close()
        self._device_threads = DeviceThreads(start.thread, timeout=self._timeout, first_timeout=self._first_timeout)
        return int(count)

    def _read(self) -> Snapshot:
        assert self._device_threads is not None  # noqa: S101 - it is open
        if self._clock() >= self._next_count_at:
            self._count()
        were_lost = {device for device in self._devices if device.lost}
        rows = self._device_threads.read(self._devices)
        if any(device.lost and device not in were_lost for device in self._devices):
            self._next_count_at = 0.0  # other devices may be lost too
        self._find_unlisted()
        rows += [row for row in self._unlisted if row.index >= len(self._devices)]
        rows.sort(key=lambda row: row.index)
        rows, last_words = self._probes.add_counters(rows)
        rows = self._host_figures.add(rows, self._demand.value)
        return Snapshot(
            time=self._now(), source=self._source, gpus=tuple(rows), faults=self._faults(), last_words=last_words
        )

    def _count(self) -> None:
        """Count the devices and note changes."""
        if self._count_since is None:
            self._count_thread.run(self._nvml.nvmlDeviceGetCount)
            self._count_since = time.monotonic()
            self._count_thread.wait(self._timeout)
        if not self._count_thread.idle:
            seconds = time.monotonic() - self._count_since
            message = f"nvmlDeviceGetCount has not returned for {seconds:.0f} s: added or removed GPUs are not noticed"
            self._count_fault = Fault(field=None, code=NO_ANSWER, message=f"the driver's call {message}")
            return
        self._count_since, self._count_fault = None, None
        self._next_count_at = self._clock() + COUNT_INTERVAL_SECONDS
        try:
            count = self._count_thread.result()
        except self._nvml.NVMLError as error:
            code = code_of(self._nvml, error)
            if code in MACHINE_CODES:
                raise
            message = f"the driver could not list its GPUs ({code}); those known before are shown"
            self._count_fault = Fault(field=None, code=code, message=message)
            return
        if count != len(self._devices):
            self._find_devices(count)

    def _find_devices(self, count: int) -> None:
        """Have every device query a new handle: after a change, an index may refer to another device."""
        self._next_count_at = self._clock() + COUNT_INTERVAL_SECONDS
        self._earlier_readings = [row for device in self._devices if (row := device.missing()).uuid] + self._unlisted
        addresses = driver_addresses()
        if len(addresses) != count:
            addresses = (None,) * count
        kept = self._devices[:count]
        clocks = {"clock": self._clock, "now": self._now}
        new = [NvmlDevice(self._nvml, index, demand=self._demand, **clocks) for index in range(len(kept), count)]
        self._devices = kept + new
        for device, address in zip(self._devices, addresses, strict=True):
            device.renew(address)

    def _find_unlisted(self) -> None:
        """After a count, when the uuids of the devices are known, find the devices that are no longer listed."""
        if self._earlier_readings:
            here = {device.uuid for device in self._devices}
            self._unlisted = [row for row in self._earlier_readings if row.uuid not in here]
            self._earlier_readings = []

    def _faults(self) -> tuple[Fault, ...]:
        """Return the machine's faults: no GPU, a failed count, GPUs whose index another one has now."""
        faults = [] if self._count_fault is None else [self._count_fault]
        if not self._devices:
            faults.append(Fault(field=None, code="NO_GPU", message="the NVIDIA driver lists no GPU"))
        for row in self._unlisted:
            if row.index < len(self._devices):
                message = f"the driver no longer lists {row.name or 'a GPU'} ({row.uuid}), which was GPU {row.index}"
                faults.append(Fault(field=None, code=NOT_LISTED, message=message))
        return tuple(faults)


class _NvmlStartup:
    """Initialisation of NVML on its own thread."""

    def __init__(self, nvml: Any) -> None:
        self.thread = CallThread()
        self.call = "nvmlInit"
        """The driver call that is running."""
        self.since = time.monotonic()
        self._nvml = nvml
        self.thread.run(self._start)

    def _start(self) -> tuple[Source, int]:
        nvml = self._nvml
        nvml.nvmlInit()
        try:
            cuda: int | None = self._version("nvmlSystemGetCudaDriverVersion_v2")
            source = Source(
                kind="nvml",
                host=os.uname().nodename,
                driver_version=self._version("nvmlSystemGetDriverVersion"),
                cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            )
            self.call = "nvmlDeviceGetCount"
            return source, nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            shut_down(nvml)
            raise

    def _version(self, call: str) -> Any:
        """Return a version; None if it cannot be read, as it is only shown."""
        self.call = call
        try:
            return getattr(self._nvml, call)()
        except UnicodeDecodeError as error:  # pynvml decodes all text as UTF-8
            return error.object.decode(errors="replace")
        except self._nvml.NVMLError:
            return None
