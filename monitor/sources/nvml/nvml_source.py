"""Live snapshots of this machine's GPUs through NVML (libnvidia-ml, by way of pynvml)."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from vramtop.estimator.common.process_limit import ProcessLimitError

from ...host.host_figures import HostFigures
from ...probe.probe_directory import ProbeDirectory
from ...snapshot.demand import CurrentDemand
from ...snapshot.figures import NO_ANSWER, NOT_LISTED, Fault
from ...snapshot.snapshot import GpuReading, Snapshot, Source
from .device import NvmlDevice
from .device_calls import MACHINE_CODES, code_of, driver_hang_error, no_driver_error
from .device_threads import FIRST_READ_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, CallThread, DeviceThreads
from .pci_device import driver_addresses

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
        self._find_devices(self._start())
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
                thread.run(lambda: _shut_down(nvml))
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
            _shut_down(nvml)
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


def _shut_down(nvml: Any) -> None:
    """Shut NVML down; none of its calls may be running.

    Args:
        nvml: the ``pynvml`` module.
    """
    with contextlib.suppress(nvml.NVMLError):  # already shut down
        nvml.nvmlShutdown()
