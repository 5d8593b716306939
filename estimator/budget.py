"""The budget: memory by phase and component, the peak, its range, and the JSON form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from typing import Annotated, Any, Literal, TypedDict, overload

import msgspec

from .common.errors import InputError
from .common.sizes import MIB, format_gib
from .job.job import EffectiveBatchJson, Job, effective_batch
from .job.job_file.changes import job_from_mapping, job_to_mapping
from .job.settings import Uncertainties

# A range of bytes.


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


# The peaks of all ranks of a job; ranks that are alike are counted, not listed.


@dataclass(frozen=True, slots=True)
class RankPeaks(Sequence["RankPeak"]):
    """The peak of each rank, by pipeline stage first, as torchtitan and Megatron-LM number them."""

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


# The budget, the result of an estimate: bytes by phase and component, the peak, its range, and the assumptions.


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
    """Peak of a rank of each pipeline stage, in their order; empty: all ranks have the same."""

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
        return RankPeaks(stages, self.job.parallel.world_size // len(stages))

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
        """Lower bound of the device's memory while no evaluation has run yet."""
        if self.peak.phase != "evaluation":
            return self.peak.low_bytes
        step = max(phase.components.total_bytes for phase in self.phases if phase.name != "evaluation")
        return self.peak.low_bytes * step // max(1, self.peak.components.total_bytes)

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


# Marks plain data in the JSON of a command as the fields of a record, for the published schemas.


@dataclass(frozen=True)
class FieldsOf:
    """Says of a dict that it has the fields of a record: ``Annotated[dict[str, Any], FieldsOf(Peak)]``.

    Type checkers see the dict; ``docs/scripts/reference`` makes the schema of the record's fields and docstrings.
    """

    record: type
    """A dataclass or msgspec struct."""
    is_whole: bool = False
    """Fields that the record's own encoder leaves out, since they have their default, are there."""
    only_known: bool = False
    """Fields that are unknown (None) are left out."""
    also: type | None = None
    """A typed dict, whose keys are there as well."""


# GPU memory that vLLM needs, and the part of a GPU that it uses for the key-value cache.


_BLOCK_TOKENS = 16
"""vLLM allocates its cache in blocks of that many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNeed:
    """GPU memory of one rank of an engine by purpose, and what its cache holds.

    ``gpu_memory_utilization`` is a share of the GPU's total for all that vLLM knows of: weights, the activations of its
    largest step, memory of other libraries, and the cache, which gets the rest (``determine_available_memory``,
    vllm/v1/worker/gpu_worker.py). CUDA's context lies outside of that share; what else does depends on the version.
    SGLang's ``mem_fraction_static`` is for weights and cache (``_profile_available_bytes``, kv_cache_configurator.py).
    """

    utilization: float
    """Share of the GPU's memory that the engine takes, from 0 to 1."""
    weights: int
    """Bytes of the weights as the engine stores them."""
    activations: int
    """Bytes of the activations of the largest step: prefilling, or sampling for all sequences."""
    libraries: int
    """Bytes that are allocated outside of torch while it profiles itself."""
    graphs: int
    """Bytes of CUDA graphs; 0: it records none."""
    sequence_bytes: int
    """Cache of one sequence of full length."""
    token_bytes: int
    """Cache of one more token of a sequence."""
    sequences: int
    """Concurrent sequences that the job asks for."""
    length: int
    """Tokens of a sequence of full length."""
    cache: int | None = None
    """Bytes of the cache where that is set, in place of a share; None: it is not set."""
    engine: str = "vLLM"
    """Name of the engine."""
    share_is_of_free: bool = False
    """SGLang: the share is of what is free before the weights are loaded, and is for weights and cache alone."""
    context: int = 0
    """Bytes of CUDA's context, outside of the share."""
    communication: int = 0
    """Bytes of NCCL's buffers, where these are outside of the share."""
    graphs_in_share: bool = False
    """The share includes the CUDA graphs."""
    context_in_share: bool = False
    """The share includes CUDA's context."""
    share_doubt: float = 0.0
    """The share may be larger or smaller by that much of the GPU's total: the version has no known rules."""
    sleeps: bool = False
    """It may give its memory back for a time."""

    @property
    def fixed_bytes(self) -> int:
        """Bytes before any cache."""
        return self.weights + self.activations + self.libraries

    @property
    def least_bytes(self) -> int:
        """Bytes with the cache of one sequence of full length."""
        return self.fixed_bytes + self.sequence_bytes

    @property
    def start_bytes(self) -> int:
        """Bytes without which the engine does not start: with CUDA graphs too, where its share includes them."""
        return self.least_bytes + self._counted_graphs

    @property
    def wanted_bytes(self) -> int:
        """Bytes with the cache of all sequences at full length."""
        return self.fixed_bytes + self.sequences * self.sequence_bytes

    @property
    def high_bytes(self) -> int:
        """Upper bound of ``least_bytes``."""
        return self.least_bytes + round(0.25 * self.activations) + self.libraries + self.graphs

    def asked_bytes(self, total_bytes: int) -> int:
        """Return the bytes that it takes of a GPU, without what is outside of its share."""
        if self.cache is not None:
            return self.fixed_bytes + self.cache
        if self.share_is_of_free:
            static = int(self.utilization * (total_bytes - self.context - self.communication))
            return static + self.activations + self.libraries
        return int(self.utilization * total_bytes)

    def cache_bytes(self, total_bytes: int) -> int:
        """Return the bytes that remain for the cache; 0 if none do."""
        if self.cache is not None:
            return self.cache
        return max(0, self.asked_bytes(total_bytes) - self.fixed_bytes - self._counted_graphs)

    @property
    def _counted_graphs(self) -> int:
        """CUDA graphs, as far as they lessen the cache."""
        return self.graphs if self.graphs_in_share else 0

    def cache_tokens(self, total_bytes: int) -> int:
        """Return the tokens that the cache holds, as vLLM logs them (``GPU KV cache size``)."""
        return self.tokens_in(self.cache_bytes(total_bytes))

    def concurrency(self, total_bytes: int) -> float:
        """Return the number of concurrent sequences of full length (vLLM's ``Maximum concurrency``)."""
        return self.sequences_in(self.cache_bytes(total_bytes))

    def tokens_in(self, cache_bytes: int) -> int:
        """Return the tokens that a cache of this size holds: whole blocks."""
        return int(self.sequences_in(cache_bytes) * self.length) // _BLOCK_TOKENS * _BLOCK_TOKENS

    def sequences_in(self, cache_bytes: int) -> float:
        """Return the number of sequences of full length that a cache of this size holds."""
        return cache_bytes / max(1, self.sequence_bytes)

    def describe_cache(self, cache_bytes: int) -> str:
        """Return what a cache of this size holds: ``1,020,464 tokens, 31.9 sequences of 32,000 at once``."""
        sequences = f"{self.sequences_in(cache_bytes):.1f} sequences of {self.length:,} at once"
        return f"{self.tokens_in(cache_bytes):,} tokens, {sequences}"


# Host memory that a job needs: bytes of RAM by purpose, per rank and per machine.


_PINNED_BUFFER_FACTOR = 1.5
"""DeepSpeed's ``additional_buffer_factor`` for pinned memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeed:
    """Bytes of RAM by purpose; of one rank unless stated otherwise."""

    process: int
    """The interpreter, libraries and CUDA's host side."""
    loaded: int
    """A private copy of the weights while they are loaded."""
    loads_once: bool
    """Only one rank of a machine has that copy."""
    mapped: int
    """Pages of the checkpoint while it is read, on the whole machine; the system can drop them."""
    weights: int = 0
    """Weights that stay offloaded."""
    gradients: int = 0
    """Gradients that stay offloaded."""
    optimizer: int = 0
    """Optimizer states that stay offloaded."""
    activations: int = 0
    """Saved activations that are offloaded until the backward pass."""
    saving: int = 0
    """Copies of weights and states while a checkpoint is written."""
    saves_once: bool = True
    """Only the first rank of the job has that copy."""

    @property
    def offloaded(self) -> int:
        """Bytes that stay on the host while the job trains."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def loading_bytes(self, ranks: int) -> int:
        """Return the bytes while ranks of one machine load; mapped pages do not count, since they can be dropped."""
        return ranks * self.process + (1 if self.loads_once else ranks) * self.loaded

    def steady_bytes(self, ranks: int) -> int:
        """Return the bytes while ranks of one machine train."""
        return ranks * (self.process + self.offloaded)

    def saving_bytes(self, ranks: int) -> int:
        """Return the bytes while ranks of one machine, the first among them, save a checkpoint."""
        return self.steady_bytes(ranks) + (1 if self.saves_once else ranks) * self.saving

    def peak_bytes(self, ranks: int) -> int:
        """Return the largest of loading, training and saving."""
        return max(self.loading_bytes(ranks), self.saving_bytes(ranks))

    def high_bytes(self, ranks: int) -> int:
        """Return the upper bound, with pinned buffers rounded up."""
        pinned = round(_PINNED_BUFFER_FACTOR * self.offloaded)
        saved = self.saving_bytes(ranks) - self.steady_bytes(ranks)
        return max(self.loading_bytes(ranks), ranks * (self.process + pinned) + saved)

    def to_json(self, ranks: int) -> HostNeedJson:
        """Return the components of one rank, and the sums for the ranks of one machine."""
        return {
            "ranks": ranks,
            "components": asdict(self),
            "loading_bytes": self.loading_bytes(ranks),
            "steady_bytes": self.steady_bytes(ranks),
            "saving_bytes": self.saving_bytes(ranks),
            "high_bytes": self.high_bytes(ranks),
        }


# The correction of a budget by measured runs, and the runs that it rests on.


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


# How the program of a budget was rehearsed.


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


# The JSON of a budget (schema 1, ``vramtop estimate --json``): its type, encoder, decoder and published schema.


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


# Widens a budget's range for settings without a rule (``Job.unsure``).


_ERRORS = {"less": "missing", "more": "twice as large", "either": "missing or twice as large"}
_CERTAIN = Uncertainties()
_UNPACKED = {
    "fp8": "GPUs before Ada cannot compute in fp8, so transformers unpacks the weights to 16 bits on them. The range "
    "covers both; name the GPU to narrow it."
}
"""What decides whether weights stay in the format in which the checkpoint stores them."""


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else words[0]


def widen_for_uncertainty(budget: Budget) -> Budget:
    """Return the budget with a range that allows for the job's uncertain components, and a warning.

    An uncertain component may be missing at the peak, or exist twice: a setting without a rule can shard, offload or
    shrink its subject, or keep a second copy of it. What is certain of any phase is needed all the same.
    """
    if budget.job.unsure == _CERTAIN:
        return budget
    sizes: dict[str, int] = dict(budget.peak.components.items())
    directions = msgspec.structs.asdict(budget.job.unsure).items()
    uncertain = [(name, direction) for name, direction in directions if direction != "no"]
    less = sum(sizes[name] for name, direction in uncertain if direction in ("less", "either"))
    more = sum(sizes[name] for name, direction in uncertain if direction in ("more", "either"))
    certain = _certain_bytes(budget, uncertain)
    outside = budget.peak.device_bytes - budget.peak.reserved_bytes
    peak = budget.peak.with_ranges(lambda span: span.moved(0, less=less, more=more).raised(certain - outside))
    peak = replace(peak, low_bytes=max(budget.peak.low_bytes - less, certain))
    stages = tuple(
        replace(stage, low_bytes=max(0, stage.low_bytes - less), high_bytes=stage.high_bytes + more)
        for stage in budget.stages
    )
    alike = {error: [name for name, direction in uncertain if direction == error] for error in _ERRORS}
    errors = "; ".join(f"{_listed(names)} {_ERRORS[error]}" for error, names in alike.items() if names)
    warning = f"Some settings are not understood (see the notes), so the range allows for {errors}."
    if [*uncertain] == [("weights", "more")] and budget.job.inference is not None:
        warning = _UNPACKED.get(budget.job.inference.weights, warning)
    largest = less + more > budget.doubt_bytes
    return replace(
        budget,
        peak=peak,
        stages=stages,
        warnings=(*budget.warnings, warning),
        doubt=warning if largest else budget.doubt,
        doubt_bytes=max(less + more, budget.doubt_bytes),
    )


def _certain_bytes(budget: Budget, uncertain: list[tuple[str, str]]) -> int:
    """Return the most that the certain components of one phase take, at the lower end of the range."""
    doubted = {name for name, direction in uncertain if direction in ("less", "either")}
    sums = [sum(size for name, size in each.components.items() if name not in doubted) for each in budget.phases]
    scale = min(1.0, budget.peak.low_bytes / max(1, budget.peak.device_bytes))
    return round(scale * max(sums, default=0))


# The budget of a server that runs: the share of its GPU that it was told to take, and what it fills it with.


_KNOWN_VERSIONS = {"vLLM": "0.6 to 0.33", "SGLang": "0.4 to 0.5"}
_SLACK_BYTES = 512 * MIB
"""Maximum of the allocator's cache and of kernels compiled later, beyond what was profiled: vLLM itself
advises to leave 150 MiB."""
_STEP_RANGE = 0.1
"""Share of the server's memory that its largest step may take, not the formula's figure. vLLM profiled 6 GiB of its
71 for Qwen3-235B-A22B-FP8 on four H100 (vllm-project/vllm#21348); images take more."""
_CONTEXT_RANGE = 0.5
"""CUDA's context may be smaller or larger by that share: it depends on the kernels that are loaded."""


def budget_on_gpu(budget: Budget, total_bytes: int | None) -> Budget:
    """Return the budget of a job on a GPU: for a server, of all that it takes there; for others, as it is.

    The lower bound is what an idle server holds: the activations of its largest step are allocated when a step of that
    size first comes.

    Args:
        budget: of a job.
        total_bytes: memory of the GPU as CUDA states it; None: unknown.
    """
    need = budget.serving
    if need is None or total_bytes is None:
        return budget
    parts = Components(
        weights=need.weights,
        activations=need.cache_bytes(total_bytes),
        temporary=need.activations + need.graphs,
        communication=need.libraries + need.communication,
        context=0 if need.context_in_share else need.context,
    )
    low, high = _bounds(need, parts, total_bytes)
    outside = parts.communication + parts.context
    loaded = Components(weights=need.weights, context=parts.context)
    running = replace(
        budget,
        phases=(
            Phase(name="loading", components=loaded, outside_bytes=loaded.context),
            Phase(name="forward", components=parts, outside_bytes=outside),
        ),
        peak=Peak(
            phase="forward",
            components=parts,
            allocated_bytes=parts.total_bytes - outside,
            reserved_bytes=parts.total_bytes - outside,
            device_bytes=parts.total_bytes,
            low_bytes=low,
            high_bytes=high,
        ),
        steady_device_bytes=parts.total_bytes,
        assumptions=tuple(_assumptions(need, total_bytes)),
        warnings=(*budget.warnings, *_warnings(need)),
    )
    widened = widen_for_uncertainty(running)
    return replace(widened, warnings=tuple(dict.fromkeys(widened.warnings)))


def _bounds(need: ServingNeed, parts: Components, total_bytes: int) -> tuple[int, int]:
    """Return the bounds of what NVML shows of a server."""
    doubt = round(need.share_doubt * total_bytes)
    context = round(_CONTEXT_RANGE * need.context)
    step = max(2 * need.activations, round(_STEP_RANGE * parts.total_bytes))
    idle = parts.total_bytes - step - need.libraries - need.graphs - need.communication - context
    low = need.context - context if need.sleeps else idle - doubt
    high = parts.total_bytes + need.graphs + need.communication + context + _SLACK_BYTES + doubt
    if need.share_is_of_free:  # what other processes held when it started is not known
        low, high = min(low, need.weights + need.context - context), high + step
    return max(0, min(low, parts.total_bytes)), high


def _assumptions(need: ServingNeed, total_bytes: int) -> Iterator[str]:
    size = need.cache_bytes(total_bytes)
    cache, tokens = f"{format_gib(size)} GiB of cache", need.describe_cache(size)
    if need.cache is not None:
        yield f"{need.engine} is set to use {cache} (kv_cache_memory_bytes): {tokens}."
    elif need.share_is_of_free:
        share = f"{need.utilization:g} of the free part of the GPU's {format_gib(total_bytes)} GiB"
        yield (
            f"{need.engine} is set to use {share} for weights and cache, which leaves {cache} if the GPU was empty: "
            f"{tokens}."
        )
    else:
        share = f"{need.utilization:g} of the GPU's {format_gib(total_bytes)} GiB"
        yield f"{need.engine} is set to use {share}; weights and the largest step leave {cache}: {tokens}."
    graphs = "within" if need.graphs_in_share else "outside"
    context = "within" if need.context_in_share else "outside"
    yield f"CUDA's context is {context} that share" + (f", and CUDA graphs are {graphs} it." if need.graphs else ".")
    if need.sleeps:
        yield "The server may sleep and release its memory for a time (enable_sleep_mode)."


def _warnings(need: ServingNeed) -> Iterator[str]:
    if need.share_doubt:
        yield (
            f"The version of {need.engine} is not known or not supported (supported: "
            f"{_KNOWN_VERSIONS.get(need.engine, '')}), so the range is wider by {100 * need.share_doubt:.0f} % of the "
            "GPU."
        )


# Bundles of a Ray placement group, one for each rank of a job, by its predicted memory.
#
# Sources: Ray 2.60, ``python/ray/util/placement_group.py`` (a bundle is a dictionary of resources), its documentation
# "Resources" (``memory`` is in bytes; a task or actor takes a part of a GPU, or whole ones, and Ray does not enforce
# the memory of a part) and ``python/ray/_common/utils.py`` (a node has one ``accelerator_type:H100``, of which a task
# takes 0.001).


_TYPE_SHARE = 0.001
_STEP = 0.01
"""Parts of a GPU are rounded up to this; Ray knows ten thousandths."""


def ray_bundles(
    budget: Budget, *, accelerator_type: str | None = None, cpus: float = 1, shared_gpu_bytes: int | None = None
) -> list[dict[str, float]]:
    """Return the bundles of a Ray placement group for a job, one per rank, in the order of the ranks.

    Args:
        budget: of the job.
        accelerator_type: Ray's name of the GPU, such as ``H100`` (``ray.util.accelerators``); None: any.
        cpus: processors of a rank; those of its data loader are not predicted.
        shared_gpu_bytes: memory of a GPU that ranks may share: each then takes the part that is the upper bound of its
            need. None: each takes a whole GPU.

    Raises:
        InputError: a rank needs more than such a GPU has.
    """
    # any of the ranks may be alone on its machine, and hold what one rank of a machine holds
    ram = {} if budget.host is None else {"memory": float(budget.host.high_bytes(1))}
    kind = {} if accelerator_type is None else {f"accelerator_type:{accelerator_type}": _TYPE_SHARE}
    return [
        {"CPU": float(cpus), "GPU": _share(need.high_bytes, shared_gpu_bytes), **ram, **kind} for need in budget.ranks
    ]


def _share(need_bytes: int, gpu_bytes: int | None) -> float:
    if gpu_bytes is None:
        return 1.0
    if need_bytes > gpu_bytes:
        raise InputError(f"a rank may need {format_gib(need_bytes)} GiB, but the GPU has {format_gib(gpu_bytes)}")
    return min(1.0, round(math.ceil(need_bytes / gpu_bytes / _STEP) * _STEP, 2))


# Converts a budget to its JSON and back.


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
