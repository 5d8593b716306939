"""The JSON of ``vramtop measure`` and ``vramtop history``."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.budget import FieldsOf, Method, PhaseName, PlainJob, Span
from vramtop.estimator.learning import MeasurementJson
from vramtop.estimator.trace.measure import MeasuredStepJson

from ..measuring import OutsideBytes
from .version import Versioned

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


class MeasuredJson(MeasuredStepJson):
    """What was measured."""

    process_bytes: int | None
    """Memory of the process as NVML counts it; null: unknown."""
    device_bytes: int | None
    """Growth of the GPU's used memory; null: unknown."""
    context_bytes: int | None
    """Memory of the CUDA context alone; null: unknown."""
    stages: dict[str, Annotated[dict[str, Any], FieldsOf(OutsideBytes)]]
    """What NVML shows by stage: `context`, `first step` (without training, after the prompt), `steady`."""


class SearchJson(TypedDict):
    """The search for the largest micro-batch that runs (`--search`)."""

    key: Literal["training.micro_batch"]
    """The setting that was varied."""
    predicted: int | None
    """Largest that was predicted to fit; null: not even 1."""
    runs: int | None
    """Largest that ran; null: none did."""
    fails: int | None
    """Smallest that ran out of memory; null: none did."""
    tries: list[int]
    """Values that were tried, in their order."""
    decided: bool
    """No value between the two remains untried."""


class _Measure(Versioned):
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


class MeasureJson(_Measure, total=False):
    """A job's real steps beside their prediction."""

    search: SearchJson
    """The search for the largest micro-batch; absent: none was asked for."""


class HistoryJson(Versioned):
    """The runs that were measured on this account."""

    runs: list[MeasurementJson]
    """The runs, the newest first."""


class ForgottenJson(Versioned):
    """How many runs were removed (`--forget`)."""

    forgotten: int
    """Number of runs."""


class ExportedJson(Versioned):
    """The file that was written (`--export FILE`)."""

    file: str
    """Path of the file."""
    runs: int
    """Number of runs in it."""
