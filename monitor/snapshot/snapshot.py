"""What the machine's GPUs held at one moment: immutable, timestamped, and honest about what is not known.

A figure that could not be read is None, and a ``Fault`` beside it says why. All sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:  # see ranges
    from collections.abc import Sequence

    from msgspec import Meta

    from vramtop.estimator.job.job import Job

    from .field_types import Count, Degrees, DriverFigure, Seconds, Watts

MAX_UNIX_SECONDS = 253_402_300_799
"""Unix seconds of the last moment that a calendar has (the year 9999)."""
ProcessKey = tuple[int, float | None]
"""A pid and its start time (Unix seconds): pids are reused. None: it is not visible from here."""
ComputeMode = Literal["default", "exclusive_process", "prohibited"]
"""Who may start CUDA programs on a GPU: anybody, one process at a time, nobody."""
ProcessKind = Literal["compute", "graphics", "mps"]
DeviceIndex = int | tuple[int, int]
"""Where memory is: on a GPU, by its index; or in one of its GPU instances (MIG), by both numbers."""

NO_ANSWER = "NO_ANSWER"
"""Code of the fault that a driver's call has not come back; the figures of a reading that has it are from before."""
HOST_MEMORY = "HOST_MEMORY"
"""Code of the fault that a GPU has no memory of its own: the figures are the host's."""
NO_DRIVER = "NO_DRIVER"
"""Code of the fault that this machine's GPUs cannot be seen at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that could not be read, and why."""

    field: str | None
    """The field of the reading that is unknown because of it; None: it concerns the whole device or machine."""
    code: str
    """The driver's word for it, such as ``NOT_SUPPORTED``."""
    message: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounters:
    """What a training process that runs with the probe says of itself and of one GPU; sizes as torch counts them."""

    time: Seconds
    """Unix seconds when it said so."""
    allocated_bytes: Count | None = None
    reserved_bytes: Count | None = None
    active_bytes: Count | None = None
    allocated_peak_bytes: Count | None = None
    reserved_peak_bytes: Count | None = None
    retries: Count | None = None
    """How often the cache was flushed because an allocation failed."""
    out_of_memory: Count | None = None
    """How often an allocation failed for good."""
    out_of_memory_time: Seconds | None = None
    """Unix seconds of the last of them, to a second."""
    steps: Count | None = None
    """Training steps that have ended; None: it does not tell its steps."""
    step_seconds: Seconds | None = None
    """How long the last step took."""
    ended: Seconds | None = None
    """Unix seconds when its interpreter came to its end; None: it has not, or was killed."""
    error: str | None = None
    """The kind of exception that ended it, such as ``OutOfMemoryError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process on one GPU."""

    pid: Count
    start_time: Seconds | None
    """Unix seconds; with the pid it identifies the process. None: not visible from here (another container, gone)."""
    used_bytes: DriverFigure | None
    """What NVML says the process holds on this GPU: CUDA context, allocator cache and all."""
    kinds: tuple[ProcessKind, ...]
    user: str | None = None
    name: str | None = None
    """Short name, such as ``python``."""
    command: str | None = None
    """Command line in one line, without control characters."""
    note: str | None = None
    """Why something is not known, or what is odd, in a few words: ``no such process here``, ``zombie``."""
    peak_bytes: DriverFigure | None = None
    """The most that it ever held on this GPU, as the driver accounts it; None: accounting is off."""
    parent: Count | None = None
    """Its parent's pid."""
    cpu_seconds: Seconds | None = None
    """Processor time that it has used so far: one that does nothing does not use any."""
    counters: ProcessCounters | None = None
    """What it says of itself; None: it runs without the probe."""
    gpu_instance: Count | None = None
    """Of a GPU in MIG mode, the instance that it runs in; None: not in MIG mode, or not known."""
    compute_instance: Count | None = None
    """Of that GPU instance, the compute instance that it runs in; None likewise."""

    @property
    def key(self) -> ProcessKey:
        """Identity over snapshots."""
        return self.pid, self.start_time

    def device_index_on(self, gpu: int) -> DeviceIndex:
        """Where its memory is, on the GPU of that index."""
        return gpu if self.gpu_instance is None else (gpu, self.gpu_instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCounters:
    """What a process with the probe said last, given once, in the first snapshot in which it is on no GPU any more."""

    gpu: Count
    """Index of the GPU that it was on."""
    pid: Count
    start_time: Seconds | None
    counters: ProcessCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReading:
    """One MIG device at one moment: a compute instance, and the memory of the GPU instance that it belongs to.

    Several compute instances of one GPU instance share its memory: each of them shows all of it.
    """

    uuid: str
    gpu_instance: Count
    compute_instance: Count
    profile: str | None = None
    """Such as ``1g.10gb``."""
    total_bytes: DriverFigure | None = None
    used_bytes: DriverFigure | None = None
    free_bytes: DriverFigure | None = None
    reserved_bytes: DriverFigure | None = None
    """Taken by the driver, as of a whole GPU; None where only memory info v1 is to be had."""


GpuKey = str | int
"""A GPU's identity over snapshots: its uuid, or its index where it has none; of a MIG device, uuid and profile."""
HistoryKey = tuple[GpuKey, int, float | None]
"""A process on one GPU or MIG device: of that the key, then the pid and its start time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at one moment. ``total = reserved + used + free`` where all four are known."""

    index: Count
    uuid: str | None
    name: str | None
    total_bytes: DriverFigure | None = None
    reserved_bytes: DriverFigure | None = None
    """Taken by driver and firmware; no job can have it. None where only memory info v1 is to be had."""
    used_bytes: DriverFigure | None = None
    """Without ``reserved_bytes`` (v2); where that is None, the driver's part is inside (v1)."""
    free_bytes: DriverFigure | None = None
    """What a new job can have."""
    utilisation_percent: DriverFigure | None = None
    temperature_c: Degrees | None = None
    power_w: Watts | None = None
    power_limit_w: Watts | None = None
    compute_mode: ComputeMode | None = None
    """None: not known."""
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=10_000)] | None = None
    """One row per pid, largest first. None: the list could not be read."""
    mig: Annotated[tuple[MigReading, ...], Meta(max_length=64)] | None = None
    """The MIG devices: in MIG mode no program can use the GPU as a whole. None: MIG mode is off, or not known."""
    faults: Annotated[tuple[Fault, ...], Meta(max_length=1000)] = ()
    read_at: Seconds = 0.0
    """Unix seconds when the memory figures were read: an old reading keeps its old time."""

    @property
    def is_stale(self) -> bool:
        """The driver hangs on it: the figures are from an earlier reading."""
        return any(fault.code == NO_ANSWER for fault in self.faults)

    @property
    def key(self) -> GpuKey:
        """Identity over snapshots: indices change when GPUs come and go."""
        return self.index if self.uuid is None else self.uuid

    @property
    def whole_gpu_key(self) -> GpuKey:
        """The key of the whole GPU."""
        return self.key

    @property
    def label(self) -> str:
        """How the process table calls it: the index; of a MIG device ``0:3``, GPU and GPU instance."""
        return str(self.index)

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts as people count: a GPU comes before its MIG devices."""
        return (self.index,)

    @property
    def shares_host_memory(self) -> bool:
        """It has no memory of its own: total and free are the host's."""
        return any(fault.code == HOST_MEMORY for fault in self.faults)

    @property
    def attributed_bytes(self) -> int | None:
        """Sum over the processes; None when the list or one of its figures is not known."""
        if self.processes is None:
            return None
        sizes = [process.used_bytes for process in self.processes]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def unattributed_bytes(self) -> int | None:
        """Used, but by no process seen here (driver, display, other containers, dead processes); never negative.

        With ``attributed_bytes`` it adds up to ``used_bytes``. None when that cannot be told: ``used_bytes``, the list
        or one of its figures is unknown, or the processes' figures add up to more than is used.
        """
        return None if self.attributed_bytes is None else self.remaining_bytes

    @property
    def remaining_bytes(self) -> int | None:
        """Used less what processes are known to hold; what processes of unknown memory hold is in it. Never negative.

        With the known figures it adds up to ``used_bytes``. None when that or the whole list is unknown, or when the
        known figures are more already.
        """
        if self.used_bytes is None or self.processes is None:
            return None
        remaining = self.used_bytes - sum(process.used_bytes or 0 for process in self.processes)
        return remaining if remaining >= 0 else None

    def reason(self, field: str) -> str | None:
        """Why ``field`` is None, in one sentence, where that is known."""
        for fault in self.faults:
            if fault.field == field or fault.field is None:
                return fault.message
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where snapshots come from."""

    kind: Literal["nvml", "recording", "demo"]
    host: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that the driver supports, such as ``13.0``."""
    path: str | None = None
    """The recording's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedJob:
    """A job known to run in certain processes, so that they are held against its budget."""

    job: Job
    pids: tuple[ProcessKey, ...]
    """Its ranks on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All GPUs at one moment."""

    time: Seconds
    """Unix seconds."""
    source: Source
    gpus: Annotated[tuple[GpuReading, ...], Meta(max_length=256)]
    faults: Annotated[tuple[Fault, ...], Meta(max_length=1000)] = ()
    """Of the machine as a whole: no driver, no permission."""
    last_words: Annotated[tuple[FinalCounters, ...], Meta(max_length=10_000)] = ()
    """Of the processes that have gone since the snapshot before."""
    watched: Annotated[tuple[WatchedJob, ...], Meta(max_length=1000)] = ()
    """Jobs that were known when a recording was made; a live source leaves this empty."""
    pending: Annotated[tuple[Job, ...], Meta(max_length=1000)] = ()
    """Jobs that were waiting when a recording was made, in order; a live source leaves this empty."""

    def processes(self) -> Sequence[tuple[GpuReading, GpuProcess]]:
        """Every (GPU, process) pair."""
        return [(gpu, process) for gpu in self.gpus for process in gpu.processes or ()]
