"""Facts about the NVIDIA driver and its GPUs. The names of the fields are the keys of ``vramtop doctor --json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about one GPU; None: not reported."""

    index: int
    """NVML index."""
    name: str | None = None
    """Name of the card."""
    uuid: str | None = None
    """First characters of the UUID."""
    memory_info: str | None = None
    """``v2``, or ``v1`` which counts the memory reserved by the driver as used."""
    total_bytes: int | None = None
    """Its memory."""
    used_bytes: int | None = None
    """Used memory."""
    free_bytes: int | None = None
    """Free memory."""
    reserved_bytes: int | None = None
    """Memory that the driver reserves."""
    implausible: str | None = None
    """Why these figures cannot be a GPU's own memory; None: they can."""
    compute_mode: str | None = None
    """Which processes may start CUDA programs on it."""
    mig_slots: int | None = None
    """Maximum number of MIG devices; None: MIG is off, or unknown."""
    processes: int | None = None
    """Number of processes on it."""
    processes_seen: int | None = None
    """Processes that can be identified from here."""
    processes_of_others: int | None = None
    """Processes of other users."""
    processes_without_memory: int | None = None
    """Processes whose memory the driver does not report."""
    abilities: Mapping[str, str] = field(default_factory=dict)
    """Supported queries: ``yes``, ``on``, ``off``, or the driver's error code for its refusal."""
    slowest_call: str | None = None
    """The driver call that took longest."""
    slowest_seconds: float | None = None
    """Time that it took, in seconds."""
    lost: str | None = None
    """The driver's error code if the GPU does not answer at all; None: it does."""
    unanswered: str | None = None
    """The call that had not returned at the time limit; None: all did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Facts about the driver; None: not reported."""

    problem: str | None = None
    """Why the driver cannot be used, in a sentence."""
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    """Latest CUDA version that the driver supports."""
    kernel_module: str | None = None
    """Kind and version of the kernel module, from /proc."""
    library: str | None = None
    """Path of the library that was loaded."""
    init_seconds: float | None = None
    unanswered: str | None = None
    """The call that had not returned at the time limit, outside of the GPUs."""
    gpus: tuple[GpuFacts, ...] = ()

    @property
    def hangs(self) -> bool:
        """True if a call had not returned at the time limit."""
        return self.unanswered is not None or any(gpu.unanswered for gpu in self.gpus)
