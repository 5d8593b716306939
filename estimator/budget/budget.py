"""The budget, the result of an estimate: bytes by phase and component, the peak, its range, and the assumptions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from ..common import format_gib
from .rank_peaks import RankPeaks
from .span import Span

if TYPE_CHECKING:  # screens that show budgets need not load the modules that make them
    from ..job import Job
    from .host_need import HostNeed
    from .json_types import BudgetJson
    from .learned import Learned
    from .serving_need import ServingNeed

Method = Literal["formula", "exact", "traced"]
PhaseName = Literal["loading", "generation", "forward", "backward", "optimizer step", "saving"]
ComponentName = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "temporary", "communication", "context"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Bytes by purpose: every byte of a GPU process that NVML counts belongs to exactly one component."""

    weights: int = 0
    """Parameters and buffers as stored, adapters and quantization constants included."""
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
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.temporary
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

    def with_ranges(self, change: Callable[[Span], Span]) -> "Peak":
        """Return the peak with the same change to each of its ranges."""
        device = change(self.device_range)
        return replace(
            self,
            low_bytes=device.low_bytes,
            high_bytes=device.high_bytes,
            allocated_range=self.allocated_range and change(self.allocated_range),
            reserved_range=self.reserved_range and change(self.reserved_range),
        )

    def joined_with(self, other: "Peak") -> "Peak":
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

    job: "Job"
    model: ModelFacts
    method: Method
    phases: tuple[Phase, ...]
    """In the order of a run: loading, generation (of text to train on), forward, backward, optimizer step, saving."""
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

    host: "HostNeed | None" = None
    """Host memory of a rank; None: unknown."""

    saved_state_bytes: int | None = field(default=None, compare=False)
    """Optimizer states of all ranks together, as a checkpoint holds them; None: not counted."""

    is_least: bool = field(default=False, compare=False)
    """The peak's reserved and device bytes, and the upper ends of their ranges, are the least that they can be, and
    ``phases`` may be incomplete: for searches only, which show no such budget."""

    serving: "ServingNeed | None" = None
    """Memory that vLLM needs, and what remains for its cache; None: vLLM does not run the job."""

    learned: "Learned | None" = None
    """Correction of the figures by this user's measured runs; None: there is none."""

    @property
    def ranks(self) -> RankPeaks:
        """Peak of each rank, by pipeline stage first, as torchtitan and Megatron-LM number them."""
        peak = self.peak
        whole = RankPeak(device_bytes=peak.device_bytes, low_bytes=peak.low_bytes, high_bytes=peak.high_bytes)
        stages = self.stages or (whole,)
        return RankPeaks(stages, self.job.parallel.world_size // len(stages))

    def of_rank(self, rank: int) -> "Budget":
        """Return the budget with the peak of this rank's pipeline stage and the components of the highest peak."""
        if not self.stages:
            return self
        need = self.ranks[rank]
        peak = replace(self.peak, device_bytes=need.device_bytes, low_bytes=need.low_bytes, high_bytes=need.high_bytes)
        return replace(self, peak=peak, steady_device_bytes=need.device_bytes)

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

    def to_json(self) -> "BudgetJson":
        """Return the JSON of ``vramtop estimate --json`` (schema 1)."""
        from .budget_json import budget_to_json

        return budget_to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Budget":
        """Return the budget that ``to_json`` wrote.

        Raises:
            InputError: it is no such JSON.
        """
        from .budget_json import budget_from_json

        return budget_from_json(data)
