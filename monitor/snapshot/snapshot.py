"""Snapshot: GPUs and processes of the machine at one moment, immutable and timestamped. All sizes are bytes.

A figure that could not be read is None, and a ``Fault`` beside it states the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from .figures import ASLEEP, HOST_MEMORY, NO_ANSWER, Count, Degrees, DriverFigure, Fault, Load, Percent, Seconds, Watts
from .gpu_details import GpuDetails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramtop.estimator.job.job import Job

ProcessKey = tuple[int, float | None]
"""A pid and its start time in Unix seconds, as pids are reused; None: the start time is not visible from here."""
ComputeMode = Literal["default", "exclusive_process", "prohibited"]
"""Which processes may start CUDA programs on a GPU: any, one at a time, none."""
ProcessType = Literal["compute", "graphics", "mps"]
DeviceIndex = int | tuple[int, int]
"""A GPU by its index, or one of its GPU instances (MIG) by the indices of both."""
GpuKey = str | int
"""Identity across snapshots: uuid of a GPU, or its index if it has none; uuid and profile of a MIG device."""
HistoryKey = tuple[GpuKey, int, float | None]
"""A process on one GPU or MIG device: key of the device, pid, start time."""


class AllocatorCounters(msgspec.Struct, frozen=True, kw_only=True):
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


class ProcessCounters(AllocatorCounters, frozen=True, kw_only=True):
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


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
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


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The host at one moment, within the limits of vramtop's container; a figure that could not be read is None."""

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


def resolve_annotations() -> None:
    """Give ``Job`` its meaning, so that msgspec can decode snapshots: a dashboard without a job does not load it."""
    from vramtop.estimator.job.job import Job

    globals()["Job"] = Job
