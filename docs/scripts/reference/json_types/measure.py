"""The JSON of ``vramtop measure``."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.budget import Method, PhaseName, PlainJob, Span
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.estimator.trace.measure.measured_step import Allocator, OutOfMemory, PhasePeak, StepPeak
from vramtop.tui.cli.measuring.free_gpus import OutsideBytes

from .versioned import Versioned

PlainSpan = Annotated[dict[str, Any], FieldsOf(Span)]


class PredictedPeakJson(TypedDict):
    """The predicted peak; of a run on the CPU, what only a GPU has is null."""

    method: Method
    """How it was estimated."""
    phase: PhaseName
    """Part of the run in which the peak is."""
    components: dict[str, int | None]
    """Bytes by purpose at the peak; null: only a GPU has it."""
    allocated_bytes: int
    """Value of `torch.cuda.max_memory_allocated`."""
    reserved_bytes: int | None
    """Value of `torch.cuda.max_memory_reserved`; null: on the CPU."""
    device_bytes: int | None
    """Memory of the process as NVML counts it; null: on the CPU."""
    low_bytes: int | None
    """Lower bound of `device_bytes`; null: on the CPU."""
    high_bytes: int | None
    """Upper bound of `device_bytes`; null: on the CPU."""
    allocated_range: PlainSpan | None
    """Range of `allocated_bytes`; null: unknown, or on the CPU."""
    reserved_range: PlainSpan | None
    """Range of `reserved_bytes`; null: unknown, or on the CPU."""
    cache_bytes: int | None
    """What the allocator may keep beyond `high_bytes` and gives back before it fails; null: on the CPU."""


class RankPeaksJson(TypedDict):
    """Peaks of one rank by torch's own counters."""

    max_allocated_bytes: int | None
    """Peak of `torch.cuda.memory_allocated`; null: unknown."""
    max_reserved_bytes: int | None
    """Peak of `torch.cuda.memory_reserved`; null: unknown, as on the CPU."""


class MeasuredJson(RankPeaksJson):
    """Memory of a job's real steps: of the rank with the highest peak, or that ran out of memory."""

    allocated_by_step_bytes: list[int | None]
    """Peak of each optimizer step, in bytes that tensors hold."""
    phases: dict[str, Annotated[dict[str, Any], FieldsOf(PhasePeak)]]
    """Highest memory of torch's allocator in each phase, over all steps."""
    by_step: list[Annotated[dict[str, Any], FieldsOf(StepPeak)]]
    """Highest memory of torch's allocator in each phase of each step, in their order."""
    components: dict[str, int | None]
    """Bytes of weights, gradients and optimizer states; null: the steps did not get that far."""
    retries: int | None
    """Times that the allocator freed its cache because memory was full; null: unknown, as on the CPU."""
    allocator: Annotated[dict[str, Any], FieldsOf(Allocator)] | None
    """What torch says of its allocator after the last step; null: unknown, as on the CPU."""
    ranks: list[RankPeaksJson]
    """Peaks of every rank."""
    out_of_memory: Annotated[dict[str, Any], FieldsOf(OutOfMemory)] | None
    """Where a rank ran out of memory; null: the steps ran."""
    process_bytes: int | None
    """Memory of the process as NVML counts it; null: unknown."""
    device_bytes: int | None
    """Growth of the GPU's used memory; null: unknown."""
    context_bytes: int | None
    """Memory of the CUDA context alone; null: unknown."""
    stages: dict[str, Annotated[dict[str, Any], FieldsOf(OutsideBytes)]]
    """What NVML shows by stage: `context`, `first step` (without training, after the prompt), `steady`."""


class MeasureJson(Versioned):
    """A job's real steps beside their prediction."""

    job: PlainJob
    """The job as it was run: the tables of a job file."""
    predicted: PredictedPeakJson | None
    """The prediction; null: there is none, and a note says why."""
    device: Literal["cuda", "cpu"] | None
    """Where the steps ran; null: they did not."""
    card: str | None
    """Name of the GPU; null: none was used."""
    driver: str | None
    """Version of the driver; null: no GPU was used, or unknown."""
    versions: dict[str, str]
    """Versions of the libraries that ran; empty: nothing did."""
    measured: MeasuredJson | None
    """The measured memory; null: the steps did not run."""
    error: str | None
    """Why the job did not run, or where it ran out of memory; null: it ran."""
    seconds: float | None
    """Time that it took; null: it did not run."""
    notes: list[str]
    """What is to be known about the figures, one sentence each."""
