"""Live snapshots of this machine's GPUs through NVML (libnvidia-ml, by way of pynvml)."""

import socket
import time
from collections.abc import Callable
from typing import Any

from .counters import ProbeDirectory
from .nvml_device import NvmlDevice
from .nvml_errors import OF_MACHINE, code_of, no_driver
from .processes import ProcessDirectory
from .snapshot import Fault, GpuReading, Snapshot, Source

COUNT_AGAIN_SECONDS = 10.0
"""Devices may come and go while vramtop runs."""


class NvmlSource:
    """This machine's GPUs. One thread does all of it: opens, reads, closes.

    Args:
        clock: seconds that never run backwards.
        now: Unix seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._directory = ProcessDirectory()
        self._probes = ProbeDirectory(clock=clock, now=now)
        self._nvml: Any = None
        self._source = Source(kind="nvml", host=socket.gethostname())
        self._devices: list[NvmlDevice] = []
        self._gone: list[GpuReading] = []
        """Rows of devices that the driver no longer lists."""
        self._count_at = 0.0
        self._count_fault: Fault | None = None

    def open(self) -> None:
        """Start NVML and find the devices.

        Raises:
            NoDriverError: there is no usable driver, and why.
        """
        import pynvml  # a replay needs none, and importing it costs

        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._source = self._describe_source()
            self._find_devices(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            raise no_driver(pynvml, error) from None

    def read(self) -> Snapshot:
        """All GPUs as they are now. NVML is started again when it was shut down under us.

        Raises:
            NoDriverError: the driver went away; ``open`` may find it again.
        """
        nvml = self._nvml
        try:
            try:
                return self._read()
            except nvml.NVMLError_Uninitialized:
                nvml.nvmlInit()
                self._find_devices(nvml.nvmlDeviceGetCount())
                return self._read()
        except nvml.NVMLError as error:
            raise no_driver(nvml, error) from None

    def close(self) -> None:
        """Shut NVML down."""
        self._probes.close()
        if self._nvml is None:
            return
        nvml, self._nvml = self._nvml, None
        self._devices, self._gone = [], []
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return  # it was not running any more, which is what is wanted

    def _read(self) -> Snapshot:
        if self._clock() >= self._count_at:
            self._count()
        rows = [self._read_device(device) for device in self._devices]
        self._directory.end_tick()
        rows += [row for row in self._gone if row.index >= len(self._devices)]
        rows.sort(key=lambda row: row.index)
        rows, last_words = self._probes.fill(rows)
        return Snapshot(
            time=self._now(), source=self._source, gpus=tuple(rows), faults=self._faults(), last_words=last_words
        )

    def _read_device(self, device: NvmlDevice) -> GpuReading:
        was_there = device.lost is None
        row = device.read(self._directory.describe)
        if was_there and device.lost is not None:
            self._count_at = 0.0  # perhaps others went with it
        return row

    def _count(self) -> None:
        """Look whether devices came or went."""
        self._count_at = self._clock() + COUNT_AGAIN_SECONDS
        self._count_fault = None
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            code = code_of(self._nvml, error)
            if code in OF_MACHINE:
                raise
            message = f"the driver could not list its GPUs ({code}); those known before are shown"
            self._count_fault = Fault(field=None, code=code, message=message)
            return
        if count != len(self._devices):
            self._find_devices(count)

    def _find_devices(self, count: int) -> None:
        """Ask every device anew for its handle: after a change, their numbers may mean others."""
        self._count_at = self._clock() + COUNT_AGAIN_SECONDS
        before = [row for device in self._devices if (row := device.missing()).uuid] + self._gone
        kept = self._devices[:count]
        new = [NvmlDevice(self._nvml, index, clock=self._clock, now=self._now) for index in range(len(kept), count)]
        self._devices = kept + new
        for device in self._devices:
            device.connect()
        here = {device.uuid for device in self._devices}
        self._gone = [row for row in before if row.uuid not in here]

    def _faults(self) -> tuple[Fault, ...]:
        """Of the machine: no GPU at all, a count that failed, GPUs whose number another one has now."""
        faults = [] if self._count_fault is None else [self._count_fault]
        if not self._devices:
            faults.append(Fault(field=None, code="NO_GPU", message="the NVIDIA driver lists no GPU"))
        for row in self._gone:
            if row.index < len(self._devices):
                message = f"the driver no longer lists {row.name or 'a GPU'} ({row.uuid}), which was GPU {row.index}"
                faults.append(Fault(field=None, code="NOT_LISTED", message=message))
        return tuple(faults)

    def _describe_source(self) -> Source:
        nvml = self._nvml
        cuda: int | None = self._version(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return Source(
            kind="nvml",
            host=socket.gethostname(),
            driver_version=self._version(nvml.nvmlSystemGetDriverVersion),
            cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        )

    def _version(self, ask: Callable[[], Any]) -> Any:
        """A version that is only for show, so one that cannot be had is None."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None
