"""The budget: memory by phase and component, the peak, its range, and the JSON form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Annotated, Any, Literal, overload

import msgspec

from .common.errors import InputError
from .common.fields_of import FieldsOf
from .common.sizes import format_gib
from .host_need import HostNeed
from .job.effective_batch import EffectiveBatchJson, effective_batch
from .job.job import Job
from .job.job_file.changes import job_from_mapping, job_to_mapping
from .serving_need import ServingNeed


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes, both ends included."""

    low_bytes: int
    """Lower end."""
    high_bytes: int
    """Upper end."""

    def moved(self, by: int, *, less: int = 0, more: int = 0) -> Span:
        """Return the range ``by`` bytes higher, with its lower end ``less`` lower and its upper end ``more`` higher."""
        return Span(max(0, self.low_bytes + by - less), max(0, self.high_bytes + by + more))

    def raised(self, low_bytes: int) -> Span:
        """Return the range without what lies below ``low_bytes``."""
        return Span(min(max(self.low_bytes, low_bytes), self.high_bytes), self.high_bytes)

    def joined(self, other: Span | None) -> Span:
        """Return the range that holds both."""
        if other is None:
            return self
        return Span(min(self.low_bytes, other.low_bytes), max(self.high_bytes, other.high_bytes))

    def says_nothing(self, expected: int) -> bool:
        """Return True if it is so wide that the expected figure means nothing: wider than twice that."""
        return self.high_bytes - self.low_bytes > 2 * expected

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low_bytes <= size <= self.high_bytes


@dataclass(frozen=True, slots=True)
class RankPeaks(Sequence["RankPeak"]):
    """The peak of each rank, by pipeline stage first, as torchtitan and Megatron-LM number them.

    What one process holds on each of several GPUs counts as a rank.
    """

    stages: tuple[RankPeak, ...]
    """Peak of a rank of each pipeline stage."""
    ranks_per_stage: int

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.stages) * self.ranks_per_stage

    @overload
    def __getitem__(self, rank: int) -> RankPeak: ...

    @overload
    def __getitem__(self, rank: slice) -> tuple[RankPeak, ...]: ...

    def __getitem__(self, rank: int | slice) -> RankPeak | tuple[RankPeak, ...]:
        """Return the peak of a rank."""
        if isinstance(rank, slice):
            return tuple(self[each] for each in range(*rank.indices(len(self))))
        return self.stages[range(len(self))[rank] // self.ranks_per_stage]

    @property
    def runs(self) -> Iterator[tuple[RankPeak, int]]:
        """Yield each run of ranks that are alike: their peak and their number."""
        for peak, stages in groupby(self.stages):
            yield peak, self.ranks_per_stage * sum(1 for _ in stages)

    @property
    def highest(self) -> RankPeak:
        """The highest peak."""
        return max(self.stages, key=lambda stage: stage.device_bytes)


Method = Literal["formula", "exact", "traced", "rehearsed"]
PhaseName = Literal["loading", "generation", "forward", "backward", "optimizer step", "evaluation", "saving"]
ComponentName = Literal[
    "weights",
    "other_models",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "temporary",
    "inputs",
    "communication",
    "context",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Bytes by purpose: every byte of a GPU process that NVML counts belongs to exactly one component."""

    weights: int = 0
    """Parameters and buffers as stored, adapters and quantization constants included."""
    other_models: int = 0
    """Weights of models that a rehearsed program holds beside the trained one: averages, references, encoders."""
    gradients: int = 0
    """Gradients of the trainable parameters."""
    optimizer: int = 0
    """Optimizer state."""
    activations: int = 0
    """Tensors that the forward pass saves for the backward pass."""
    logits: int = 0
    """The last layer's output, its casts, and the loss's buffers."""
    temporary: int = 0
    """Cast weights, workspaces, and tensors of single operations."""
    inputs: int = 0
    """What a rehearsed program copies to the GPU; elsewhere it is counted as activations."""
    communication: int = 0
    """All-gathered shards, reduction buckets, and NCCL's own buffers."""
    context: int = 0
    """CUDA context, loaded kernels and libraries, which torch's allocator never sees."""

    def items(self) -> Iterator[tuple[ComponentName, int]]:
        """Yield (name, bytes) in the order in which a bar stacks them."""
        for f in fields(self):
            yield f.name, getattr(self, f.name)  # type: ignore[misc]

    @property
    def total_bytes(self) -> int:
        """Sum of the components."""
        return (
            self.weights
            + self.other_models
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.temporary
            + self.inputs
            + self.communication
            + self.context
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The moment with the highest memory in one part of a training step, on the rank with the highest peak."""

    name: PhaseName
    components: Components
    outside_bytes: int
    """Bytes among ``components`` that never pass through torch's allocator: CUDA context, NCCL's own buffers."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes as ``torch.cuda.max_memory_allocated`` counts them."""
        return self.components.total_bytes - self.outside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment with the highest memory of the whole run, and its uncertainty."""

    phase: PhaseName
    """Part of the run in which it is."""
    components: Components
    """Bytes by purpose at that moment."""
    allocated_bytes: int
    """Value of ``torch.cuda.max_memory_allocated``."""
    reserved_bytes: int
    """Value of ``torch.cuda.max_memory_reserved``: allocated bytes and the allocator's slack."""
    device_bytes: int
    """Memory of the process in NVML: reserved, CUDA context and libraries. The expected figure."""
    low_bytes: int
    """Lower bound of ``device_bytes``."""
    high_bytes: int
    """Upper bound: ``device_bytes`` lies in [low, high] for nine in ten published figures (``tests/accuracy``)."""
    allocated_range: Span | None = None
    """Range of ``allocated_bytes``, as ``low_bytes`` and ``high_bytes`` are for the device; None: not known."""
    reserved_range: Span | None = None
    """Range of ``reserved_bytes``; None: not known."""
    cache_bytes: int = 0
    """Bytes that the allocator may keep beyond ``high_bytes`` where batches differ in length, and frees in time:
    NVML shows it, and whether the job fits does not depend on it."""

    @property
    def shown_high_bytes(self) -> int:
        """Upper bound of what NVML shows: ``high_bytes``, and what the allocator need not keep."""
        return self.high_bytes + self.cache_bytes

    @property
    def says_nothing(self) -> bool:
        """True if the range is too wide for the expected figure to mean anything; the warnings say why."""
        return self.device_range.says_nothing(self.device_bytes)

    @property
    def device_range(self) -> Span:
        """Range of ``device_bytes``: ``low_bytes`` to ``high_bytes``."""
        return Span(self.low_bytes, self.high_bytes)

    def with_ranges(self, change: Callable[[Span], Span]) -> Peak:
        """Return the peak with the same change to each of its ranges."""
        device = change(self.device_range)
        return replace(
            self,
            low_bytes=device.low_bytes,
            high_bytes=device.high_bytes,
            allocated_range=self.allocated_range and change(self.allocated_range),
            reserved_range=self.reserved_range and change(self.reserved_range),
        )

    def joined_with(self, other: Peak) -> Peak:
        """Return the peak with ranges that hold the other's too."""
        device = self.device_range.joined(other.device_range)
        return replace(
            self,
            low_bytes=device.low_bytes,
            high_bytes=device.high_bytes,
            allocated_range=self.allocated_range and self.allocated_range.joined(other.allocated_range),
            reserved_range=self.reserved_range and self.reserved_range.joined(other.reserved_range),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """Peak of one rank, as NVML counts the process."""

    device_bytes: int
    """Expected peak."""
    low_bytes: int
    """Lower bound of the peak."""
    high_bytes: int
    """Upper bound of the peak."""

    @property
    def says_nothing(self) -> bool:
        """True if the range is too wide for the expected figure to mean anything; the warnings say why."""
        return Span(self.low_bytes, self.high_bytes).says_nothing(self.device_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Size of the model, and how it was counted."""

    parameters: int
    """Every parameter once (tied ones are one), without adapters."""
    trainable_parameters: int
    """Parameters with gradients; with LoRA, those of the adapters."""
    count: Literal["exact", "approximate"]
    """``exact``: counted on the built model; ``approximate``: from the shape in its config."""
    max_positions: int | None = None
    """Tokens of the longest sequence that it takes; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTensor:
    """A tensor that exists at the peak."""

    module: str
    """Path of its module in the model; empty: it belongs to no module."""
    shape: tuple[int, ...]
    """Its dimensions, in elements."""
    dtype: str
    """Type of its elements, as torch names it."""
    bytes: int
    """Its size in bytes."""
    component: ComponentName
    """Component that it is counted as."""
    line: str = ""
    """File and line of the program that made it; empty: no program was rehearsed."""
    own_line: str = ""
    """Where that is a library's: the line in the program's own folder that led there; empty: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMark:
    """Begin of a phase on a timeline."""

    name: PhaseName
    """Name of the phase."""
    event: int
    """Number of its first allocation or release, as in ``events``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Memory over one training step: a selection of moments, among them the highest of each stretch.

    ``events``, ``levels`` and ``reserved_bytes`` have the same length, one entry for each moment.
    """

    events: tuple[int, ...]
    """Index of the allocation or release that each moment follows, over the traced run; ascending. Not a time."""
    levels: tuple[Components, ...]
    """Bytes of the whole process at each moment, including ``outside_bytes``."""
    reserved_bytes: tuple[int, ...]
    """Value of ``torch.cuda.memory_reserved`` at each moment."""
    outside_bytes: int
    """Bytes of each level that never pass through torch's allocator: CUDA context, NCCL's own buffers."""
    phases: tuple[PhaseMark, ...]
    """In the order of the step; with gradient accumulation, forward and backward occur once per traced micro-batch."""

    @property
    def peak(self) -> int:
        """Index of the moment with the highest memory."""
        totals = [level.total_bytes for level in self.levels]
        return totals.index(max(totals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The predicted memory of the rank of a job with the highest peak."""

    job: Job
    model: ModelFacts
    method: Method
    phases: tuple[Phase, ...]
    """In the order of a run: loading, generation (of text to train on), forward, backward, optimizer step, evaluation,
    saving."""
    peak: Peak
    steady_device_bytes: int
    """Bytes that NVML shows between steps: the allocator's cache has grown and does not shrink by itself."""
    assumptions: tuple[str, ...]
    """Assumptions, one sentence each."""
    warnings: tuple[str, ...]
    """Reasons to trust the figure less, one sentence each."""
    largest: tuple[LargeTensor, ...] = ()
    """The largest tensors at the peak; empty: no step was traced."""
    timeline: Timeline | None = None
    """Memory over a traced step; None: no step was traced, since a closed form knows only its phases."""
    stages: tuple[RankPeak, ...] = ()
    """Peak of a rank of each pipeline stage, or on each GPU of one process, in their order; empty: all are alike."""

    host: HostNeed | None = None
    """Host memory of a rank; None: unknown."""

    saved_state_bytes: int | None = field(default=None, compare=False)
    """Optimizer states of all ranks together, as a checkpoint holds them; None: not counted."""

    is_least: bool = field(default=False, compare=False)
    """The peak's reserved and device bytes, and the upper ends of their ranges, are the least that they can be, and
    ``phases`` may be incomplete: for searches only, which show no such budget."""

    doubt: str | None = field(default=None, compare=False)
    """The sentence on what widens the range most; None: nothing that the job leaves open does."""
    doubt_bytes: int = field(default=0, compare=False)
    """By how much it does."""

    serving: ServingNeed | None = None
    """Memory that vLLM needs, and what remains for its cache; None: vLLM does not run the job."""

    learned: Learned | None = None
    """Correction of the figures by this user's measured runs; None: there is none."""

    rehearsal: RehearsalFacts | None = None
    """How the program was rehearsed; None: the budget is of a described job."""

    @property
    def ranks(self) -> RankPeaks:
        """Peak of each rank, by pipeline stage first, as torchtitan and Megatron-LM number them."""
        peak = self.peak
        whole = RankPeak(device_bytes=peak.device_bytes, low_bytes=peak.low_bytes, high_bytes=peak.high_bytes)
        stages = self.stages or (whole,)
        return RankPeaks(stages, max(1, self.job.parallel.world_size // len(stages)))

    def of_rank(self, rank: int) -> Budget:
        """Return the budget with the peak of this rank's pipeline stage and the components of the highest peak."""
        if not self.stages:
            return self
        need = self.ranks[rank]
        peak = replace(self.peak, device_bytes=need.device_bytes, low_bytes=need.low_bytes, high_bytes=need.high_bytes)
        return replace(self, peak=peak, steady_device_bytes=need.device_bytes)

    @property
    def not_counted_phases(self) -> tuple[PhaseName, ...]:
        """What a training run does besides its steps and no figure here holds."""
        if self.job.training.mode != "train":
            return ()
        besides: tuple[PhaseName, ...] = ("evaluation", "saving")
        return tuple(name for name in besides if self.phase(name) is None)

    @property
    def not_counted(self) -> str | None:
        """What a training run does besides its steps and no figure here holds, in a sentence; None: nothing."""
        missing = self.not_counted_phases
        return f"This figure does not include {' or '.join(missing)}." if missing else None

    @property
    def low_bytes_before_evaluation(self) -> int:
        """Lower bound of the device's memory while no evaluation has run yet, nor left its cache."""
        if self.phase("evaluation") is None:
            return self.peak.low_bytes
        step = max(phase.components.total_bytes for phase in self.phases if phase.name != "evaluation")
        return min(self.peak.low_bytes, self.peak.low_bytes * step // max(1, self.peak.device_bytes))

    def phase(self, name: PhaseName) -> Phase | None:
        """Return the phase of that name; None if the job has none (inference has no backward)."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def __str__(self) -> str:
        """Return a table for a notebook or a log: GiB by component and phase, and the peak with its range."""
        peak = self.peak
        heads = [f"{phase.name:>16}" for phase in self.phases]
        rows = [f"{self.job.label} ({self.method}), GiB".ljust(34)[:34] + "".join(heads)]
        for name, total in peak.components.items():
            sizes = [getattr(phase.components, name) for phase in self.phases]
            if total or any(sizes):
                rows.append(name.ljust(34) + "".join(f"{format_gib(size, digits=2):>16}" for size in sizes))
        span = f"{format_gib(peak.low_bytes, digits=2)} to {format_gib(peak.high_bytes, digits=2)}"
        rows.append(f"peak {format_gib(peak.device_bytes, digits=2)} ({span}) on the device, in the {peak.phase}")
        return "\n".join(rows)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of ``vramtop estimate --json`` (schema 1)."""
        return budget_to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Budget:
        """Return the budget that ``to_json`` wrote.

        Raises:
            InputError: it is no such JSON.
        """
        return budget_from_json(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A correction by measured runs, in words and figures."""

    sentence: str
    """The correction in words, with the uncorrected figure."""
    runs: int
    """Measured runs that it rests on."""
    jobs: int
    """Different jobs among them."""
    same_job: bool
    """Some of the runs are of this very job."""
    last: float
    """Unix seconds of the newest of the runs."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Bytes that were added, by mechanism: fixed, tokens, slack, context, nccl."""
    uncorrected: Peak
    """The peak without the correction."""
    uncorrected_outside_bytes: int
    """Bytes of that peak that never pass through torch's allocator."""
    uncorrected_steady_bytes: int
    """Bytes between steps without the correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalFacts:
    """The run of a program without a GPU, of which a budget was made."""

    python: str
    """The interpreter that ran it."""
    versions: Mapping[str, str]
    """Versions of Python and of the libraries that it imported."""
    optimizer_steps: Mapping[str, int]
    """By class of the optimizer."""
    step: int
    """The optimizer step with the peak, from 1; one more than were asked for: the peak comes after them."""
    seconds: float
    """Time that it ran."""
    host_bytes: int
    """Host memory that it took."""
    time: float
    """Unix seconds of its end."""
    growth_bytes: int = 0
    """Bytes that stay allocated after each step."""


PlainJob = Annotated[dict[str, Any], FieldsOf(Job)]


class PhaseJson(msgspec.Struct, frozen=True):
    """One part of a training step, at its moment with the highest memory, on the rank with the highest peak."""

    name: PhaseName
    """Name of the phase."""
    components: Components
    """Bytes by purpose."""
    allocated_bytes: int
    """Bytes as `torch.cuda.max_memory_allocated` counts them: the components less what torch's allocator never sees."""


class TimelineJson(msgspec.Struct, frozen=True):
    """Memory over one traced training step: a selection of moments, in columns of the same length."""

    events: tuple[int, ...]
    """Number of the allocation or release that each moment follows; ascending. Not a time."""
    components: dict[ComponentName, tuple[int, ...]]
    """Bytes of the whole process at each moment, by component; components that stay empty are left out."""
    reserved_bytes: tuple[int, ...]
    """Bytes of `torch.cuda.memory_reserved` at each moment."""
    outside_bytes: int
    """Bytes of each moment that never pass through torch's allocator: CUDA context, NCCL's own buffers."""
    phases: tuple[PhaseMark, ...]
    """Beginnings of the phases, in the order of the step."""


class BudgetJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """The predicted memory of the rank of a job with the highest peak; sizes are bytes."""

    schema: Literal[1]
    """Version of this format; a later one only if a field changes its meaning."""
    job: PlainJob
    """The job as it was estimated: the tables of a job file. Keys that are not set are left out."""
    model: ModelFacts
    """Size of the model."""
    method: Method
    """`formula`: closed form; `exact`: closed form on an exact count of the parameters; `traced`: a traced training
    step; `rehearsed`: the program itself, run without a GPU."""
    phases: tuple[PhaseJson, ...]
    """In the order of a run; a phase that the job does not have is left out."""
    peak: Peak
    """The moment with the highest memory of the whole run."""
    steady_device_bytes: int
    """Bytes that NVML shows between steps, when the allocator's cache has grown."""
    assumptions: tuple[str, ...]
    """Assumptions of the estimate, one sentence each."""
    warnings: tuple[str, ...]
    """Reasons to trust the figures less, one sentence each."""
    largest: tuple[LargeTensor, ...] = ()
    """The largest tensors at the peak; absent: no step was traced."""
    stages: tuple[RankPeak, ...] = ()
    """Peak of a rank of each pipeline stage, in their order; absent: all ranks have the same."""
    host: HostNeed | None = None
    """RAM of a rank; absent: not estimated."""
    serving: ServingNeed | None = None
    """Memory that an engine (vLLM, SGLang) needs; absent: none runs the job."""
    learned: Learned | None = None
    """Correction of these figures by measured runs; absent: there is none."""
    rehearsal: RehearsalFacts | None = None
    """How the program was rehearsed; absent: the job is described."""
    effective_batch: EffectiveBatchJson | None = None
    """Sequences and tokens of one optimizer step; absent: inference."""
    timeline: TimelineJson | None = None
    """Memory over the traced step; absent: no step was traced."""


PlainBudget = Annotated[dict[str, Any], FieldsOf(BudgetJson)]


def budget_to_json(budget: Budget) -> dict[str, Any]:
    """Return plain data; what is unknown is left out (``largest``, ``timeline``, ``host``, ``learned``)."""
    batch = effective_batch(budget.job)
    found = BudgetJson(
        schema=1,
        job=job_to_mapping(budget.job),
        phases=tuple(PhaseJson(each.name, each.components, each.allocated_bytes) for each in budget.phases),
        effective_batch=batch.to_json() if batch else None,
        timeline=_timeline_to_json(budget.timeline) if budget.timeline else None,
        **{name: getattr(budget, name) for name in _SAME_FIELDS},
    )
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def budget_from_json(data: Mapping[str, Any]) -> Budget:
    """Return the budget that ``budget_to_json`` wrote; unknown keys are ignored.

    Raises:
        InputError: it is no such JSON, or has another schema.
    """
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema not in (None, 1):
        raise InputError(
            f"this budget has schema {schema}, but this vramtop reads only schema 1; estimate the job again"
        )
    try:
        read = msgspec.convert(data, BudgetJson)
    except msgspec.ValidationError as error:
        raise InputError(f"this is not a budget that vramtop wrote: {error}") from None
    return Budget(
        job=job_from_mapping(read.job, where="the budget's job"),
        phases=tuple(
            Phase(
                name=phase.name,
                components=phase.components,
                outside_bytes=phase.components.total_bytes - phase.allocated_bytes,
            )
            for phase in read.phases
        ),
        timeline=_timeline_from_json(read.timeline) if read.timeline else None,
        **{name: getattr(read, name) for name in _SAME_FIELDS},
    )


_SAME_FIELDS = (
    *("model", "method", "peak", "steady_device_bytes", "assumptions", "warnings"),
    *("largest", "stages", "host", "serving", "learned", "rehearsal"),
)
"""Fields that a budget and its JSON share."""


def _timeline_to_json(timeline: Timeline) -> TimelineJson:
    """Return the timeline by columns, without components that stay empty."""
    columns = {name: tuple(getattr(level, name) for level in timeline.levels) for name, _ in Components().items()}
    return TimelineJson(
        events=timeline.events,
        components={name: sizes for name, sizes in columns.items() if any(sizes)},
        reserved_bytes=timeline.reserved_bytes,
        outside_bytes=timeline.outside_bytes,
        phases=timeline.phases,
    )


def _timeline_from_json(read: TimelineJson) -> Timeline:
    columns = (read.events, read.reserved_bytes, *read.components.values())
    if {len(column) for column in columns} != {len(read.events)}:
        raise InputError("this is not a budget that vramtop wrote: the columns of its timeline differ in length")
    rows = zip(*read.components.values(), strict=True)
    return Timeline(
        events=read.events,
        levels=tuple(Components(**dict(zip(read.components, row, strict=True))) for row in rows),
        reserved_bytes=read.reserved_bytes,
        outside_bytes=read.outside_bytes,
        phases=read.phases,
    )
