"""Memory of one GPU: the driver's figures, or the host's if the GPU has no memory of its own."""

from collections.abc import Callable
from typing import Any

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from ...host.available_ram import available_host_memory, host_total_bytes
from ...snapshot.figures import HOST_MEMORY, Fault
from ...snapshot.mig_devices import excess_fault
from ...snapshot.snapshot import GpuProcess
from .device_calls import DeviceCalls, RefusedError, field_fault
from .process_rows import MAX_GPU_BYTES

_MEMORY_INFO = ("nvmlDeviceGetMemoryInfo",)


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Memory info in bytes; None: unknown."""

    total: int | None = None
    reserved: int | None = None
    used: int | None = None
    free: int | None = None
    shared: bool = False
    """Total and free are the host's."""


MemoryReading = tuple[MemoryFigures, tuple[Fault, ...]]
"""The figures, with the faults of missing ones."""


class NvmlMemory:
    """Memory of one device. Not thread-safe.

    Args:
        nvml: the ``pynvml`` module, initialised.
        calls: of the device.
        now: Unix seconds.
    """

    def __init__(self, nvml: Any, calls: DeviceCalls, *, now: Callable[[], float]) -> None:
        self.read_at = 0.0
        """Unix seconds of the last figures."""
        self._nvml = nvml
        self._calls = calls
        self._now = now
        self._handle: Any = None
        self._name: str | None = None
        self._knows_v2 = False
        """Memory info v2 has worked before; v1 counts reserved memory as used, and would make the figures jump."""

    def connect(self, handle: Any, name: str | None) -> None:
        """Use a new handle of the device, which has this name."""
        self._handle, self._name = handle, name

    def read(self, *, whole: bool) -> MemoryReading:
        """Return memory info v2; with a driver that has only v1, ``used`` includes reserved memory.

        Args:
            whole: it is not in MIG mode, in which a GPU may refuse to report its own memory.

        Raises:
            DeviceLostError: the device as a whole does not answer.
        """
        faults: tuple[Fault, ...] = ()
        try:
            info = self._calls.query("memory v2", _MEMORY_INFO, self._handle, self._nvml.nvmlMemory_v2)
            figures = MemoryFigures(total=info.total, reserved=info.reserved, used=info.used, free=info.free)
            self._knows_v2 = True
        except RefusedError as refused:
            if self._knows_v2:  # as it has worked before, the failure is temporary
                return _unknown(refused.code)
            if refused.code == "NOT_SUPPORTED":
                return self._host_memory() if whole and self._may_share_memory() else _unknown(refused.code)
            try:
                info = self._calls.query("memory v1", _MEMORY_INFO, self._handle)
            except RefusedError as refused_v1:
                unified = refused_v1.code == "NOT_SUPPORTED" and whole and self._may_share_memory()
                return self._host_memory() if unified else _unknown(refused_v1.code)
            figures = MemoryFigures(total=info.total, used=info.used, free=info.free)
            message = "this driver counts its reserved part as used memory (memory info v1)"
            faults = (Fault(field="reserved_bytes", code=refused.code, message=message),)
        self.read_at = self._now()
        problem = implausible(figures)
        if problem is not None:
            host = host_total_bytes()
            unified = whole and self._may_share_memory(alike=abs((figures.total or 0) - host) <= host // 20)
            return self._host_memory() if unified else _unknown("IMPLAUSIBLE", problem)
        return _consistent(figures), faults

    def read_again(self, attributed: int) -> MemoryReading:
        """Read again because the processes have grown; adds a fault if they still hold more than is used.

        Args:
            attributed: bytes that the processes hold.
        """
        memory, faults = self.read(whole=False)
        if memory.used is None or attributed <= memory.used:
            return memory, faults
        return memory, (*faults, excess_fault(attributed, memory.used))

    def _may_share_memory(self, *, alike: bool = True) -> bool:
        """Return True if this GPU model has no memory of its own; of one that is not known, if its figures say so.

        Args:
            alike: the figures are those of a GPU without its own memory. A total of 0 is not: it says nothing.
        """
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # rarely needed, and reads the catalogue

        model = match_nvml_name(self._name, None) if self._name else None
        return alike if model is None else model.unified

    def _host_memory(self) -> MemoryReading:
        """Return the memory of a GPU without its own, such as GB10 and Jetson; its used memory is not known yet."""
        self.read_at = self._now()
        return MemoryFigures(total=host_total_bytes(), free=available_host_memory(), shared=True), ()


def shared_memory_use(memory: MemoryFigures, processes: tuple[GpuProcess, ...] | None) -> MemoryReading:
    """Return shared memory with its used part: the sum over the processes, if all of these are known."""
    message = "this GPU shares the host's memory: total and free are the host's, used is what its processes hold"
    shared = Fault(field="reserved_bytes", code=HOST_MEMORY, message=message)
    sizes = [process.used_bytes for process in processes or ()]
    known = [size for size in sizes if size is not None]
    if processes is not None and len(known) == len(sizes):
        return replace(memory, used=sum(known)), (shared,)
    message = "not all of its processes' memory is known, so its used memory is unknown"
    return memory, (shared, Fault(field="used_bytes", code=HOST_MEMORY, message=message))


def implausible(memory: MemoryFigures) -> str | None:
    """Return why these figures cannot be a GPU's own memory; None if they can.

    GPUs that share the host's memory may report a total of 0, as a driver in trouble does, or figures that do not add
    up (a GB10 reported 119.7 GiB in total, 6.4 used, 7.4 free).
    """
    total, used, free = memory.total or 0, memory.used or 0, memory.free or 0
    parts = used + free + (memory.reserved or 0)
    if 0 < total <= MAX_GPU_BYTES and used <= total and free <= total and abs(parts - total) <= total // 20:
        return None
    return (
        f"the driver's memory figures are implausible ({format_gib(total)} GiB in all, {format_gib(used)} used, "
        f"{format_gib(free)} free)"
    )


def _consistent(memory: MemoryFigures) -> MemoryFigures:
    """Count what is neither used nor free as reserved (v2), or as used, as ``nvidia-smi`` does (v1)."""
    total, free = memory.total or 0, memory.free or 0
    if memory.reserved is None:
        return replace(memory, used=total - free)
    free = min(free, total - (memory.used or 0))
    return replace(memory, free=free, reserved=total - free - (memory.used or 0))


_FIELDS = {
    "total_bytes": "its total memory",
    "reserved_bytes": "its reserved memory",
    "used_bytes": "its used memory",
    "free_bytes": "its free memory",
}


def _unknown(code: str, message: str | None = None) -> MemoryReading:
    faults = (field_fault(field, code, what=what) for field, what in _FIELDS.items())
    return MemoryFigures(), tuple(faults if message is None else (replace(each, message=message) for each in faults))
