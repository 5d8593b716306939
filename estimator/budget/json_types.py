"""The JSON of a budget, key by key (``vramtop estimate --json``); its schema is made from these types."""

from typing import Annotated, Any, Literal, TypedDict

from ..job import EffectiveBatchJson, Job
from .budget import ComponentName, Components, LargeTensor, Method, ModelFacts, Peak, PhaseMark, PhaseName, RankPeak
from .fields_of import FieldsOf
from .host_need import HostNeed
from .learned import Learned
from .serving_need import ServingNeed

PlainJob = Annotated[dict[str, Any], FieldsOf(Job)]
PlainComponents = Annotated[dict[str, Any], FieldsOf(Components)]


class PhaseJson(TypedDict):
    """One part of a training step, at its moment with the highest memory, on the rank with the highest peak."""

    name: PhaseName
    """Name of the phase."""
    components: PlainComponents
    """Bytes by purpose."""
    allocated_bytes: int
    """Bytes as `torch.cuda.max_memory_allocated` counts them: the components less what torch's allocator never sees."""


class TimelineJson(TypedDict):
    """Memory over one traced training step: a selection of moments, in columns of the same length."""

    events: list[int]
    """Number of the allocation or release that each moment follows; ascending. Not a time."""
    components: dict[ComponentName, list[int]]
    """Bytes of the whole process at each moment, by component; components that stay empty are left out."""
    reserved_bytes: list[int]
    """Bytes of `torch.cuda.memory_reserved` at each moment."""
    outside_bytes: int
    """Bytes of each moment that never pass through torch's allocator: CUDA context, NCCL's own buffers."""
    phases: list[Annotated[dict[str, Any], FieldsOf(PhaseMark)]]
    """Beginnings of the phases, in the order of the step."""


class _Budget(TypedDict):
    schema: Literal[1]
    """Version of this format; a later one only if a field changes its meaning."""
    job: PlainJob
    """The job as it was estimated: the tables of a job file. Keys that are not set are left out."""
    model: Annotated[dict[str, Any], FieldsOf(ModelFacts)]
    """Size of the model."""
    method: Method
    """`formula`: closed form; `exact`: closed form on an exact count of the parameters; `traced`: a traced training
    step."""
    phases: list[PhaseJson]
    """In the order of a run; a phase that the job does not have is left out."""
    peak: Annotated[dict[str, Any], FieldsOf(Peak)]
    """The moment with the highest memory of the whole run."""
    steady_device_bytes: int
    """Bytes that NVML shows between steps, when the allocator's cache has grown."""
    assumptions: list[str]
    """Assumptions of the estimate, one sentence each."""
    warnings: list[str]
    """Reasons to trust the figures less, one sentence each."""


class BudgetJson(_Budget, total=False):
    """The predicted memory of the rank of a job with the highest peak; sizes are bytes."""

    largest: list[Annotated[dict[str, Any], FieldsOf(LargeTensor)]]
    """The largest tensors at the peak; absent: no step was traced."""
    stages: list[Annotated[dict[str, Any], FieldsOf(RankPeak)]]
    """Peak of a rank of each pipeline stage, in their order; absent: all ranks have the same."""
    host: Annotated[dict[str, Any], FieldsOf(HostNeed)]
    """RAM of a rank; absent: not estimated."""
    serving: Annotated[dict[str, Any], FieldsOf(ServingNeed)]
    """Memory that an engine (vLLM, SGLang) needs; absent: none runs the job."""
    learned: Annotated[dict[str, Any], FieldsOf(Learned)]
    """Correction of these figures by measured runs; absent: there is none."""
    effective_batch: EffectiveBatchJson
    """Sequences and tokens of one optimizer step; absent: inference."""
    timeline: TimelineJson
    """Memory over the traced step; absent: no step was traced."""


class HostNeedJson(TypedDict):
    """RAM that the ranks on one machine need."""

    ranks: int
    """Ranks on the machine."""
    components: Annotated[dict[str, Any], FieldsOf(HostNeed)]
    """Bytes of RAM of one rank, by purpose."""
    loading_bytes: int
    """All ranks together, while they load the model."""
    steady_bytes: int
    """All ranks together, while they train."""
    saving_bytes: int
    """All ranks together, while they save a checkpoint."""
    high_bytes: int
    """Upper bound of the largest of the three, with pinned buffers rounded up."""
