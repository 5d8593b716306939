"""Snapshot: GPUs and processes of the machine at one moment, immutable and timestamped. All sizes are bytes.

A figure that could not be read is None, and a ``Fault`` beside it states the reason.
"""

from __future__ import annotations

import math
import threading
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from .faults import ASLEEP, HOST_MEMORY, NO_ANSWER, Fault
from .field_types import Count, Degrees, DriverFigure, Load, Percent, Seconds, Watts
from .gpu_details import DetailLevel, GpuDetails

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from vramtop.estimator.job.job import Job

ProcessKey = tuple[int, float | None]
"""A pid and its start time in Unix seconds, as pids are reused; None: the start time is not visible from here."""
ComputeMode = Literal["default", "exclusive_process", "prohibited"]
"""Which processes may start CUDA programs on a GPU: any, one at a time, none."""
ProcessType = Literal["compute", "graphics", "mps"]
DeviceIndex = int | tuple[int, int]
"""A GPU by its index, or one of its GPU instances (MIG) by the indices of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCounters:
    """Counters of torch's caching allocator for one process on one GPU (``torch.cuda.memory_stats``); None: unknown."""

    allocated_bytes: Count | None = None
    """Held by tensors."""
    reserved_bytes: Count | None = None
    """Held by the allocator."""
    active_bytes: Count | None = None
    """Held by tensors, or freed and still in use by another stream."""
    allocated_peak_bytes: Count | None = None
    """The most that tensors held since the process started, even if it resets torch's own peak."""
    reserved_peak_bytes: Count | None = None
    """The most that the allocator held, likewise."""
    retries: Count | None = None
    """How often the cache was flushed because an allocation failed."""
    out_of_memory: Count | None = None
    """How often an allocation failed permanently."""
    out_of_memory_time: Seconds | None = None
    """Unix seconds of the last of these failures, to a second; None: there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounters(AllocatorCounters):
    """Figures that the probe in a training process publishes: the allocator's for one GPU, and the process's own."""

    time: Seconds
    """Unix seconds at which they were published."""
    steps: Count | None = None
    """Training steps completed; None: the process does not report its steps."""
    step_seconds: Seconds | None = None
    """Duration of the last step; None: the process does not report its steps."""
    ended: Seconds | None = None
    """Unix seconds when its interpreter exited; None: it has not, or was killed."""
    error: str | None = None
    """Class of the exception that ended it, such as ``OutOfMemoryError``; None: none did."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU."""

    pid: Count
    """Its process id."""
    start_time: Seconds | None
    """Unix seconds; with the pid it identifies the process. None: not visible from here (ended, other container)."""
    used_bytes: DriverFigure | None
    """Memory of the process on this GPU according to NVML, including CUDA context and allocator cache."""
    kinds: tuple[ProcessType, ...]
    """What it uses the GPU for."""
    user: str | None = None
    """Its user."""
    name: str | None = None
    """Short name, such as ``python``."""
    command: str | None = None
    """Command line as one line, without control characters."""
    note: str | None = None
    """Why something is unknown or unusual: ``not visible from here``, ``zombie``; None: nothing is."""
    peak_bytes: DriverFigure | None = None
    """Its highest memory on this GPU by the driver's accounting; None: accounting mode is off."""
    parent: Count | None = None
    """Pid of its parent."""
    parent_name: str | None = None
    """Short name of its parent when that was first seen, such as ``torchrun`` or ``bash``."""
    runs_in: str | None = None
    """The Slurm job, pod or container that it runs in: ``Slurm job 4711 step 0 (sft)``; None: none, or unknown."""
    cpu_seconds: Seconds | None = None
    """Processor time used so far, in seconds; an idle process uses none."""
    counters: ProcessCounters | None = None
    """Figures from its probe; None: it runs without one."""
    gpu_instance: Count | None = None
    """GPU instance that it runs in (MIG); None: the GPU is not in MIG mode, or the instance is unknown."""
    compute_instance: Count | None = None
    """Compute instance of that GPU instance that it runs in; None: no MIG mode, or unknown."""
    figures: ProcessFigures | None = None
    """Utilisation, RAM and threads; None: no screen asked for them."""

    @property
    def key(self) -> ProcessKey:
        """Its identity across snapshots."""
        return self.pid, self.start_time

    def device_index_on(self, gpu: int) -> DeviceIndex:
        """Return the GPU of this index, or the GPU instance on it, whose memory it uses."""
        return gpu if self.gpu_instance is None else (gpu, self.gpu_instance)


class FinalCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Last figures of a process with the probe, given once: in the first snapshot in which it is on no GPU."""

    gpu: Count
    """Index of the GPU that the process was on."""
    pid: Count
    """The process."""
    start_time: Seconds | None
    """Unix seconds."""
    counters: ProcessCounters


class MigReading(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device at one moment: a compute instance with the memory of its GPU instance.

    Compute instances of one GPU instance share its memory: each of them shows all of it.
    """

    uuid: str
    """UUID."""
    gpu_instance: Count
    """GPU instance whose memory it has."""
    compute_instance: Count
    """Compute instance of that GPU instance."""
    profile: str | None = None
    """MIG profile, such as ``1g.10gb``."""
    total_bytes: DriverFigure | None = None
    """Memory of its GPU instance."""
    used_bytes: DriverFigure | None = None
    """Used memory of its GPU instance."""
    free_bytes: DriverFigure | None = None
    """Free memory of its GPU instance."""
    reserved_bytes: DriverFigure | None = None
    """Reserved by the driver; None where the driver has only memory info v1."""


GpuKey = str | int
"""Identity across snapshots: uuid of a GPU, or its index if it has none; uuid and profile of a MIG device."""
HistoryKey = tuple[GpuKey, int, float | None]
"""A process on one GPU or MIG device: key of the device, pid, start time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at one moment. ``total = reserved + used + free`` where all four are known."""

    index: Count
    """NVML index."""
    uuid: str | None
    """UUID."""
    name: str | None
    """Name of the card."""
    total_bytes: DriverFigure | None = None
    """Its memory."""
    reserved_bytes: DriverFigure | None = None
    """Reserved by driver and firmware, unavailable to jobs; None where the driver has only memory info v1."""
    used_bytes: DriverFigure | None = None
    """Excludes ``reserved_bytes`` (memory info v2); where that is None, it includes them (v1)."""
    free_bytes: DriverFigure | None = None
    """Available to a new job."""
    utilisation_percent: DriverFigure | None = None
    """Share of time in which a program ran on it."""
    memory_utilisation_percent: DriverFigure | None = None
    """Share of time in which its memory was read or written."""
    temperature_c: Degrees | None = None
    """Temperature in degrees Celsius."""
    power_w: Watts | None = None
    """Power that it takes, in watts."""
    power_limit_w: Watts | None = None
    """Most power that it may take, in watts."""
    compute_mode: ComputeMode | None = None
    """Which processes may start CUDA programs on it; None: unknown."""
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=20_000)] | None = None
    """One entry per process (in MIG mode per GPU instance and process), largest first; None: could not be read."""
    mig: Annotated[tuple[MigReading, ...], Meta(max_length=64)] | None = None
    """MIG devices: in MIG mode no program can use the whole GPU. None: MIG mode is off, or unknown."""
    faults: Annotated[tuple[Fault, ...], Meta(max_length=1000)] = ()
    """What could not be read."""
    read_at: Seconds = 0.0
    """Unix seconds when the memory figures were read; earlier than the snapshot's time if they are stale."""
    details: GpuDetails | None = None
    """Figures that a screen shows of this GPU beyond these; None: none does."""

    @property
    def is_stale(self) -> bool:
        """True if the driver hangs on this GPU: the figures are from an earlier reading."""
        return any(fault.code == NO_ANSWER for fault in self.faults)

    @property
    def loss(self) -> Fault | None:
        """Why nothing of it can be read now; None: it can be, or it is asleep."""
        if not self.is_stale and self.used_bytes is not None:
            return None
        return next((fault for fault in self.faults if fault.field is None and fault.code != ASLEEP), None)

    @property
    def key(self) -> GpuKey:
        """Its identity across snapshots: indices change when GPUs come and go."""
        return self.index if self.uuid is None else self.uuid

    @property
    def whole_gpu_key(self) -> GpuKey:
        """Key of the whole GPU."""
        return self.key

    @property
    def label(self) -> str:
        """Label in sentences: the index; of a MIG device GPU and GPU instance, ``0:3``; of many hosts ``node1:0``."""
        return str(self.index)

    @property
    def column_label(self) -> str:
        """Label in tables, beside the name of its host where there are many."""
        return self.label

    @property
    def host(self) -> str | None:
        """Name of its host, of a reading of many hosts; None: there is only one."""
        return None

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key: by index, a GPU before its MIG devices."""
        return (self.index,)

    @property
    def shares_host_memory(self) -> bool:
        """True if it has no memory of its own: total and free are the host's."""
        return any(fault.code == HOST_MEMORY for fault in self.faults)

    @property
    def cuda_total_bytes(self) -> int | None:
        """Its memory as CUDA states it: without what the driver reserves."""
        return None if self.total_bytes is None else self.total_bytes - (self.reserved_bytes or 0)

    @property
    def attributed_bytes(self) -> int | None:
        """Sum over the processes; None if the list or one of its figures is unknown."""
        if self.processes is None:
            return None
        known = [process.used_bytes for process in self.processes if process.used_bytes is not None]
        return sum(known) if len(known) == len(self.processes) else None

    @property
    def unattributed_bytes(self) -> int | None:
        """Memory of no visible process (driver, display, containers, dead processes); None if unknown or negative."""
        return None if self.attributed_bytes is None else self.remaining_bytes

    @property
    def remaining_bytes(self) -> int | None:
        """Used memory less the known memory of processes, so with unknown ones; None if unknown or negative."""
        if self.used_bytes is None or self.processes is None:
            return None
        remaining = self.used_bytes - sum(process.used_bytes or 0 for process in self.processes)
        return remaining if remaining >= 0 else None

    def reason(self, field: str) -> str | None:
        """Return why ``field`` is None, in one sentence; None if there is no fault for it."""
        for fault in self.faults:
            if fault.field == field or fault.field is None:
                return fault.message
        return None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a snapshot."""

    kind: Literal["nvml", "recording", "demo"]
    """What kind of source it is."""
    host: str | None = None
    """Name of the machine."""
    driver_version: str | None = None
    """Version of the driver."""
    cuda_version: str | None = None
    """Latest CUDA version that the driver supports, such as ``13.0``."""
    path: str | None = None
    """Path of the recording; None: it is none."""

    @property
    def is_live(self) -> bool:
        """True if it is this machine now, so that its processes can be looked at; False: a recording or other hosts."""
        return self.kind == "nvml"


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job known to run in certain processes, which are compared with its budget."""

    job: Job
    """The job."""
    pids: tuple[ProcessKey, ...]
    """Its ranks on this machine."""
    missing: tuple[str, ...] = ()
    """Job keys that could not be read: the job has guesses in their place."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs at one moment."""

    time: Seconds
    """Unix seconds."""
    source: Source
    gpus: Annotated[tuple[GpuReading, ...], Meta(max_length=256)]
    """By index."""
    faults: Annotated[tuple[Fault, ...], Meta(max_length=1000)] = ()
    """Faults of the machine as a whole: no driver, no permission."""
    last_words: Annotated[tuple[FinalCounters, ...], Meta(max_length=10_000)] = ()
    """Last figures of processes that have left the GPUs since the previous snapshot."""
    watched: Annotated[tuple[WatchedJob, ...], Meta(max_length=1000)] = ()
    """Jobs that were known when the recording was made; empty in snapshots of a live source."""
    pending: Annotated[tuple[Job, ...], Meta(max_length=1000)] = ()
    """Pending jobs when the recording was made, in order; empty in snapshots of a live source."""
    host: HostLoad | None = None
    """Load of the machine; None: no screen shows it."""

    def processes(self) -> Sequence[tuple[GpuReading, GpuProcess]]:
        """Return every (GPU, process) pair."""
        return [(gpu, process) for gpu in self.gpus for process in gpu.processes or ()]


# Demand: what the screen in front shows beyond the memory of GPUs and processes. Only that is read in addition.


ProcessFigure = Literal["sm_percent", "bandwidth_percent", "cpu_percent", "rss_bytes", "threads"]
"""A field of ``ProcessFigures``."""
DRIVER_FIGURES: frozenset[ProcessFigure] = frozenset({"sm_percent", "bandwidth_percent"})
"""Figures that cost a driver call for each GPU."""
HOST_FIGURES: frozenset[ProcessFigure] = frozenset({"cpu_percent", "rss_bytes", "threads"})
"""Figures that cost a file of ``/proc`` for each process."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a reading is to contain in addition; nothing by default."""

    process_figures: frozenset[ProcessFigure] = frozenset()
    """Figures that are shown of the processes in ``processes``."""
    processes: frozenset[ProcessKey] = frozenset()
    """Processes whose rows are in sight."""
    figures_of_all: frozenset[ProcessFigure] = frozenset()
    """Figures that are needed of all processes, because they are sorted or chosen by them."""
    gpus: Mapping[GpuKey, DetailLevel] = msgspec.field(default_factory=dict)
    """GPUs of which details are shown; a MIG device counts as its GPU (``whole_gpu_key``)."""
    host: bool = False
    """The load of the host is shown."""

    def figures_of(self, process: GpuProcess) -> frozenset[ProcessFigure]:
        """Return the figures to read of a process."""
        if process.key in self.processes:
            return self.process_figures | self.figures_of_all
        return self.figures_of_all

    def includes_any(self, figures: frozenset[ProcessFigure]) -> bool:
        """Return True if one of these figures is to be read of any process."""
        return not figures.isdisjoint(self.figures_of_all) or (
            bool(self.processes) and not figures.isdisjoint(self.process_figures)
        )

    def adds_to(self, before: Demand) -> bool:
        """Return True if it asks for all details of another GPU, for the host, or for other figures of processes.

        An open screen waits for them; it need not for those of rows that are scrolled into view.
        """
        gpus = (key for key, level in self.gpus.items() if level == "full" and before.gpus.get(key) != level)
        figures = (self.process_figures | self.figures_of_all) - before.process_figures - before.figures_of_all
        return (self.host and not before.host) or any(True for _ in gpus) or bool(figures)


@dataclass(slots=True)
class CurrentDemand:
    """The demand of the screen in front: set on the UI thread, looked at by a source at every reading."""

    value: Demand = field(default_factory=Demand)
    always: frozenset[ProcessFigure] = frozenset()
    """Figures of all processes that are needed whatever is shown, as what is displayed is chosen by them."""

    def __post_init__(self) -> None:
        self.show(self.value)

    def show(self, demand: Demand) -> bool:
        """Have the next reading contain this; returns True if it should be read soon (``adds_to``)."""
        before, self.value = self.value, replace(demand, figures_of_all=demand.figures_of_all | self.always)
        return self.value.adds_to(before)


GpuFigure = Literal["utilisation_percent", "memory_utilisation_percent", "power_w", "temperature_c"]
"""A field of ``GpuReading`` whose history is kept."""
_FIGURES: tuple[GpuFigure, ...] = ("utilisation_percent", "memory_utilisation_percent", "power_w", "temperature_c")


# Names of several GPUs in a sentence: consecutive indices are shortened, ``GPU 0-63``.


_MIN_RUN = 3
"""Shorter runs of consecutive indices are written out: ``0, 1``."""


def gpu_list(labels: Iterable[int | str | range], *, most: int | None = None) -> str:
    """Return GPUs and MIG devices in their order: ``0-63``, ``0, 2, 4-7``, ``0:3``.

    Args:
        labels: indices, ranges of indices, and labels of MIG devices.
        most: of more parts than this, only the first are named.
    """
    parts: list[range | str] = []
    for label in labels:
        if isinstance(label, str) and not label.isdecimal():
            parts.append(label)
            continue
        run = label if isinstance(label, range) else range(int(label), int(label) + 1)
        before = parts[-1] if parts else ""
        if isinstance(before, range) and before.stop == run.start:
            parts[-1] = range(before.start, run.stop)
        else:
            parts.append(run)
    words = ", ".join(part if isinstance(part, str) else _range_text(part) for part in parts[:most])
    return words if most is None or len(parts) <= most else f"{words} …"


def _range_text(run: range) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) >= _MIN_RUN else ", ".join(map(str, run))


# Load of the host: processors, RAM, swap and load, within the limits of vramtop's container.


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The host at one moment; a figure that could not be read is None."""

    cpu_percent: Load | None = None
    """Share of ``cpus`` that was busy since the previous reading; None at the first one."""
    cpus: Load | None = None
    """Number of processors, or the container's limit."""
    cpu_limited: bool = False
    """``cpus`` is the container's limit, and ``cpu_percent`` what the container used."""
    ram_used_bytes: Count | None = None
    """Used RAM, without caches that the system drops on demand."""
    ram_total_bytes: Count | None = None
    """RAM, or the container's limit."""
    ram_limited: bool = False
    """The figures of the RAM are those of the container."""
    swap_used_bytes: Count | None = None
    """Used swap space."""
    swap_total_bytes: Count | None = None
    """Swap space; 0: the host has none."""
    load: tuple[Load, Load, Load] | None = None
    """Average number of tasks that run or wait, of the whole host, over 1, 5 and 15 minutes."""


# MIG devices as readings of their own: whatever is shown of a GPU can be shown of each of them.


_FIELDS = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice(GpuReading):
    """One MIG device, with the memory of its GPU instance; ``index`` is that of the GPU.

    If several devices share a GPU instance, the first one represents its memory and lists the processes of all.
    """

    device: MigReading
    parent_key: GpuKey
    """Key of the GPU that it is a part of."""
    shares_memory: bool = False
    """Other devices use the same GPU instance and its memory."""
    shares_memory_of: str | None = None
    """Label of the device that represents this memory; None: this one does."""

    @property
    def key(self) -> GpuKey:
        """Uuid and profile: with another profile it is another device."""
        return f"{self.device.uuid} {self.device.profile or ''}"

    @property
    def whole_gpu_key(self) -> GpuKey:
        """Key of the GPU that it is a part of."""
        return self.parent_key

    @property
    def label(self) -> str:
        """GPU and GPU instance, ``0:3``; with the compute instance where there are several: ``0:3:1``."""
        return mig_label(self.index, self.device, shares_memory=self.shares_memory)

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key: after its GPU, by its instances."""
        return (self.index, *self.instances)

    @property
    def instances(self) -> tuple[int, int]:
        """Indices of its GPU instance and compute instance."""
        return self.device.gpu_instance, self.device.compute_instance


def mig_label(index: int, device: MigReading, *, shares_memory: bool) -> str:
    """Return a label with the indices of nvidia-smi: GPU, GPU instance, and compute instance where it is needed.

    Args:
        index: of the GPU.
        device: the MIG device.
        shares_memory: other devices use the same GPU instance.
    """
    part = f":{device.compute_instance}" if shares_memory or device.compute_instance else ""
    return f"{index}:{device.gpu_instance}{part}"


def mig_devices(gpu: GpuReading) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU by instance; none if MIG mode is off or unknown."""
    if not gpu.mig:
        return ()
    listed = sorted(gpu.mig, key=lambda device: (device.gpu_instance, device.compute_instance))
    parts: dict[int, list[MigReading]] = {}
    for device in listed:
        parts.setdefault(device.gpu_instance, []).append(device)
    return tuple(_device(gpu, device, parts[device.gpu_instance]) for device in listed)


def processes_by_device(gpu: GpuReading, devices: Sequence[MigDevice]) -> Iterator[tuple[GpuReading, GpuProcess]]:
    """Yield each process with its MIG device; with the GPU itself if there is none or it is unknown.

    Args:
        gpu: the GPU.
        devices: its MIG devices (``mig_devices``).
    """
    by_instances: dict[tuple[int | None, int | None], GpuReading] = {device.instances: device for device in devices}
    by_instances |= {
        (device.device.gpu_instance, None): device for device in devices if device.shares_memory_of is None
    }
    for process in gpu.processes or ():
        instance, compute = process.gpu_instance, process.compute_instance
        device = by_instances.get((instance, compute)) or by_instances.get((instance, None)) or gpu
        yield device, process


def device_of(gpu: GpuReading, process: GpuProcess) -> GpuReading:
    """Return the MIG device that a process of the GPU runs in, else the GPU itself."""
    return next((device for device, each in processes_by_device(gpu, mig_devices(gpu)) if each is process), gpu)


def _device(gpu: GpuReading, device: MigReading, same_instance: Sequence[MigReading]) -> MigDevice:
    shared, first = len(same_instance) > 1, same_instance[0]
    processes = _processes_in(gpu, device)
    return MigDevice(
        index=gpu.index,
        uuid=device.uuid,
        name=" ".join(filter(None, (gpu.name, "MIG", device.profile))),
        total_bytes=device.total_bytes,
        reserved_bytes=device.reserved_bytes,
        used_bytes=device.used_bytes,
        free_bytes=device.free_bytes,
        compute_mode=gpu.compute_mode,
        processes=processes if device is first else _in_compute_instance(processes, device.compute_instance),
        faults=_faults(gpu, device, processes),
        read_at=gpu.read_at,
        device=device,
        parent_key=gpu.key,
        shares_memory=shared,
        shares_memory_of=None if device is first else mig_label(gpu.index, first, shares_memory=True),
    )


def _processes_in(gpu: GpuReading, device: MigReading) -> tuple[GpuProcess, ...] | None:
    """Return the processes of a device's GPU instance."""
    if gpu.processes is None:
        return None
    return tuple(process for process in gpu.processes if process.gpu_instance == device.gpu_instance)


def _in_compute_instance(processes: tuple[GpuProcess, ...] | None, index: int) -> tuple[GpuProcess, ...] | None:
    """Return those of the processes that run in one compute instance."""
    return processes and tuple(process for process in processes if process.compute_instance == index)


def _faults(gpu: GpuReading, device: MigReading, processes: tuple[GpuProcess, ...] | None) -> tuple[Fault, ...]:
    """Return the device's faults under the names of its own fields."""
    faults = [fault for fault in gpu.faults if fault.field == "processes"]
    reason = next((fault for fault in gpu.faults if fault.field == "mig"), None)
    if reason is not None and device.used_bytes is None:
        faults += [Fault(field=field, code=reason.code, message=reason.message) for field in _FIELDS]
    held = sum(process.used_bytes or 0 for process in processes or ())
    if device.used_bytes is not None and held > device.used_bytes:
        message = (
            f"the processes' figures add up to {format_gib(held)} GiB, more than the "
            f"{format_gib(device.used_bytes)} GiB that the driver counts as used"
        )
        faults.append(Fault(field="unattributed_bytes", code="IMPLAUSIBLE", message=message))
    return tuple(faults)


# Memory of every GPU and process over time: recent samples, and peaks over a process's lifetime; bounded in size.


_Key = TypeVar("_Key")

MemorySample = tuple[float, int | None]
"""Unix seconds and bytes; None: unknown at that time."""


class MemoryHistory:
    """Memory samples per GPU, MIG device and process. Thread-safe: filled on one thread, read on another.

    Args:
        capacity: maximum number of recent samples kept of each, and of lifetime intervals kept of a process.
        keep_seconds: time for which the history of something that has left the snapshots is kept.
    """

    def __init__(self, capacity: int = 600, *, keep_seconds: float = 120.0) -> None:
        self._capacity = capacity
        self._keep_seconds = keep_seconds
        self._gpus: dict[GpuKey, _RingBuffer] = {}
        self._activity: dict[tuple[GpuKey, GpuFigure], _RingBuffer] = {}
        self._processes: dict[HistoryKey, _RingBuffer] = {}
        self._lifetimes: dict[HistoryKey, _LifetimePeaks] = {}
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot, *, keep: Collection[HistoryKey] = ()) -> None:
        """Add the figures of a snapshot, at the snapshot's own time.

        Args:
            snapshot: later than the one before.
            keep: processes whose history is kept even if they have left the snapshots.
        """
        with self._lock:
            for gpu in snapshot.gpus:
                stale, devices = gpu.is_stale, mig_devices(gpu)
                for device in (gpu, *devices):
                    size = None if stale else device.used_bytes
                    _ring_for(self._gpus, device.key, self._capacity).add(snapshot.time, size)
                gpu_key = gpu.key
                for figure in _FIGURES:
                    value = None if stale else getattr(gpu, figure)
                    ring = _ring_for(self._activity, (gpu_key, figure), self._capacity)
                    ring.add(snapshot.time, None if value is None else round(value))
                for device, process in processes_by_device(gpu, devices):
                    key = (gpu_key if device is gpu else device.key, process.pid, process.start_time)
                    size = None if stale else process.used_bytes
                    _ring_for(self._processes, key, self._capacity).add(snapshot.time, size)
                    if key not in self._lifetimes:
                        self._lifetimes[key] = _LifetimePeaks(self._capacity)
                    self._lifetimes[key].add(snapshot.time, size)
            oldest = snapshot.time - self._keep_seconds
            _forget(self._gpus, oldest)
            _forget(self._activity, oldest)
            _forget(self._processes, oldest, keep)
            if len(self._lifetimes) > len(self._processes):
                self._lifetimes = {key: peaks for key, peaks in self._lifetimes.items() if key in self._processes}

    def gpu(self, key: GpuKey) -> Sequence[MemorySample]:
        """Return the used memory of a GPU or MIG device, oldest sample first; empty if it is unknown."""
        with self._lock:
            return _samples(self._gpus.get(key))

    def activity(self, key: GpuKey, figure: GpuFigure) -> Sequence[tuple[float, int | None]]:
        """Return Unix seconds and a rounded figure of a whole GPU, oldest sample first; empty if it is unknown."""
        with self._lock:
            return _samples(self._activity.get((key, figure)))

    def process(self, key: HistoryKey) -> Sequence[MemorySample]:
        """Return the memory of a process on one GPU, oldest sample first; empty if it is unknown."""
        with self._lock:
            return _samples(self._processes.get(key))

    def lifetime(self, key: HistoryKey) -> Sequence[MemorySample]:
        """Return a process's memory since its first sample: peaks of intervals, followed by the recent samples.

        Intervals are of equal length and get longer as the process gets older.
        """
        with self._lock:
            lifetime, recent = self._lifetimes.get(key), _samples(self._processes.get(key))
            past = [] if lifetime is None or not recent else lifetime.before(recent[0][0])
            return [*past, *recent]


class _RingBuffer:
    """The last ``capacity`` samples, as two doubles each."""

    __slots__ = ("_capacity", "_next", "_sizes", "_times", "latest")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._sizes = array("d")  # exact up to 2^53 bytes; NaN: unknown
        self._next = 0
        self.latest = -math.inf

    def add(self, time: float, size: int | None) -> None:
        stored = math.nan if size is None else size
        if len(self._times) < self._capacity:
            self._times.append(time)
            self._sizes.append(stored)
        else:
            self._times[self._next] = time
            self._sizes[self._next] = stored
            self._next = (self._next + 1) % self._capacity
        self.latest = time

    def samples(self) -> list[MemorySample]:
        times = self._times[self._next :] + self._times[: self._next]
        sizes = self._sizes[self._next :] + self._sizes[: self._next]
        return [(time, None if math.isnan(size) else int(size)) for time, size in zip(times, sizes, strict=True)]


class _LifetimePeaks:
    """The peak of each of at most ``capacity`` intervals; when all are used, neighbours are merged in pairs."""

    __slots__ = ("_capacity", "_interval_samples", "_last_samples", "_sizes", "_times")

    def __init__(self, capacity: int) -> None:
        self._capacity = max(2, capacity)
        self._interval_samples = 1
        """Samples in an interval."""
        self._last_samples = 0
        """Samples in the last interval."""
        self._times = array("d")
        self._sizes = array("d")

    def add(self, time: float, size: int | None) -> None:
        if self._last_samples and self._last_samples < self._interval_samples:
            self._sizes[-1] = _max_known(self._sizes[-1], math.nan if size is None else size)
            self._last_samples += 1
            return
        if len(self._times) == self._capacity:
            self._merge_pairs()
        self._times.append(time)
        self._sizes.append(math.nan if size is None else size)
        self._last_samples = 1

    def before(self, time: float) -> list[MemorySample]:
        pairs = zip(self._times, self._sizes, strict=True)
        return [(at, None if math.isnan(size) else int(size)) for at, size in pairs if at < time]

    def _merge_pairs(self) -> None:
        sizes = self._sizes
        pairs = (sizes[at : at + 2] for at in range(0, len(sizes), 2))
        self._sizes = array("d", (_max_known(*pair) if len(pair) == 2 else pair[0] for pair in pairs))
        self._times = self._times[::2]
        self._interval_samples *= 2


def usual_interval(samples: Sequence[MemorySample]) -> float | None:
    """Return the median of the seconds between samples; None for fewer than two samples."""
    gaps = sorted(later[0] - earlier[0] for earlier, later in pairwise(samples))
    return gaps[len(gaps) // 2] if gaps else None


def _max_known(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _samples(ring: _RingBuffer | None) -> list[MemorySample]:
    return [] if ring is None else ring.samples()


def _ring_for(rings: dict[_Key, _RingBuffer], key: _Key, capacity: int) -> _RingBuffer:
    ring = rings.get(key)
    if ring is None:
        ring = rings[key] = _RingBuffer(capacity)
    return ring


def _forget(rings: dict[_Key, _RingBuffer], before: float, keep: Collection[_Key] = ()) -> None:
    for key in [key for key, ring in rings.items() if ring.latest < before and key not in keep]:
        del rings[key]


# Activity of a process beside its GPU memory: its share of the GPU and of the processors, RAM and threads.
#
# These figures are in a snapshot only where a screen asked for them (``demand``).


FIRST_SAMPLE = "FIRST_SAMPLE"
"""Fault code: the figure is a rate, and there is one sample so far."""


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one process on one GPU, named as in ``ProcessFigure``; None: not asked for, or see ``faults``."""

    sm_percent: Percent | None = None
    """Time in which its kernels ran on the GPU's multiprocessors, in the last one to two seconds; None: not asked for,
    or unknown."""
    bandwidth_percent: Percent | None = None
    """Time in which it read or wrote the GPU's memory; None: not asked for, or unknown."""
    cpu_percent: Percent | None = None
    """Processor time, where 100 is one core; None: not asked for, or unknown."""
    rss_bytes: Count | None = None
    """Resident set size: its pages in RAM, also those that it shares with others; None: not asked for, or unknown."""
    threads: Count | None = None
    """Number of its threads; None: not asked for, or unknown."""
    faults: Annotated[tuple[Fault, ...], Meta(max_length=100)] = ()
    """Why figures that were asked for are unknown."""

    def fault(self, figure: str) -> Fault | None:
        """Return why a figure is unknown; None: it was not asked for, or is known."""
        return next((fault for fault in self.faults if fault.field == figure), None)


def resolve_annotations() -> None:
    """Give ``Job`` its meaning, so that msgspec can decode snapshots: a dashboard without a job does not load it."""
    from vramtop.estimator.job.job import Job

    globals()["Job"] = Job
