"""What an estimate says: bytes by phase and component, the peak, its range, and what was assumed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from ..common.sizes import format_gib

if TYPE_CHECKING:  # who shows budgets need not load what makes them
    from ..job.job import Job
    from .host_need import HostNeed
    from .serving_need import ServingNeed

Method = Literal["formula", "exact", "traced"]
PhaseName = Literal["loading", "forward", "backward", "optimizer step"]
ComponentName = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "temporary", "communication", "context"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Bytes by what they are for. All of a GPU process, as NVML counts it, lies in exactly one of them."""

    weights: int = 0
    """Parameters and buffers as stored, adapters and quantization constants included."""
    gradients: int = 0
    """Gradients of the trainable parameters."""
    optimizer: int = 0
    """Optimizer state."""
    activations: int = 0
    """What the forward pass saves for the backward pass."""
    logits: int = 0
    """The last layer's output, its casts, and the loss's buffers."""
    temporary: int = 0
    """Cast weights, workspaces, and what one operation needs while it runs."""
    communication: int = 0
    """Gathered shards, reduction buckets, and NCCL's own buffers."""
    context: int = 0
    """CUDA context, loaded kernels and libraries: never through torch's allocator."""

    def items(self) -> Iterator[tuple[ComponentName, int]]:
        """(name, bytes) in the order in which a bar stacks them."""
        for f in fields(self):
            yield f.name, getattr(self, f.name)  # type: ignore[misc]

    @property
    def total_bytes(self) -> int:
        """Sum over the components."""
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
    """The fullest moment of one part of a training step, on the fullest rank."""

    name: PhaseName
    components: Components
    outside_bytes: int
    """The part of ``components`` that never passes through torch's allocator: CUDA context, NCCL's own buffers."""

    @property
    def allocated_bytes(self) -> int:
        """As ``torch.cuda.max_memory_allocated`` would count it."""
        return self.components.total_bytes - self.outside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The fullest moment of the whole run, and how sure that is."""

    phase: PhaseName
    components: Components
    allocated_bytes: int
    """As ``torch.cuda.max_memory_allocated`` would count it."""
    reserved_bytes: int
    """As ``torch.cuda.max_memory_reserved`` would count it: allocated and the allocator's own slack."""
    device_bytes: int
    """As NVML counts the process: reserved, CUDA context and libraries. The expected figure."""
    low_bytes: int
    high_bytes: int
    """``device_bytes`` lies in [low, high] with the sureness that the method's checks have shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """What one rank takes at its peak, as NVML counts the process."""

    device_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """How large the model is, and how that was found out."""

    parameters: int
    """Every parameter once (tied ones are one), adapters not included."""
    trainable_parameters: int
    """Those that get gradients; with adapters, the adapters'."""
    count: Literal["exact", "approximate"]
    """``exact``: counted on the built model; ``approximate``: from the shape in its config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTensor:
    """A tensor that is alive at the peak."""

    module: str
    """The module's path in the model; empty: none of its own."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    component: ComponentName


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMark:
    """Where a phase begins on a timeline."""

    name: PhaseName
    event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """How memory goes over one training step: a selection of moments, the highest of each stretch among them.

    ``events``, ``levels`` and ``reserved_bytes`` are of one length, one entry for each moment.
    """

    events: tuple[int, ...]
    """Which allocation or release each moment follows, counted over the traced run; ascending. Not a time."""
    levels: tuple[Components, ...]
    """What is held then, all of the process: ``outside_bytes`` are in it."""
    reserved_bytes: tuple[int, ...]
    """As ``torch.cuda.memory_reserved`` would count it then."""
    outside_bytes: int
    """The part of each level that never passes through torch's allocator: CUDA context, NCCL's own buffers."""
    phases: tuple[PhaseMark, ...]
    """In the order of the step; with gradient accumulation, forward and backward come once for each micro-batch run."""

    @property
    def peak(self) -> int:
        """Position of the fullest moment."""
        totals = [level.total_bytes for level in self.levels]
        return totals.index(max(totals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The predicted memory of one rank of a job: its fullest."""

    job: "Job"
    model: ModelFacts
    method: Method
    phases: tuple[Phase, ...]
    """In the order of a run: loading, forward, backward, optimizer step."""
    peak: Peak
    steady_device_bytes: int
    """What NVML shows between steps once the allocator's cache has grown: it does not shrink by itself."""
    assumptions: tuple[str, ...]
    """What was taken for granted, one sentence each."""
    warnings: tuple[str, ...]
    """What the user should know before trusting the figure, one sentence each."""
    largest: tuple[LargeTensor, ...] = ()
    """The largest tensors at the peak, where a step was traced."""
    timeline: Timeline | None = None
    """How memory goes over a step, where one was traced; a closed form knows only its phases."""
    stages: tuple[RankPeak, ...] = ()
    """A rank of each pipeline stage, in their order; empty: all ranks take the same."""

    host: "HostNeed | None" = None
    """What a rank takes of its machine's RAM; None: nobody worked it out."""

    matrix_parameters: int | None = field(default=None, compare=False)
    """Trained parameters that are matrices of blocks, which some optimizers step apart; None: not counted."""

    serving: "ServingNeed | None" = None
    """What vLLM takes, and what it leaves for its cache; None: it does not run the job."""

    @property
    def ranks(self) -> tuple[RankPeak, ...]:
        """What each rank takes, those of the first pipeline stage first, as torchtitan and Megatron-LM number them."""
        peak = self.peak
        whole = RankPeak(device_bytes=peak.device_bytes, low_bytes=peak.low_bytes, high_bytes=peak.high_bytes)
        stages = self.stages or (whole,)
        return tuple(stage for stage in stages for _ in range(self.job.parallel.world_size // len(stages)))

    def of_rank(self, rank: int) -> "Budget":
        """The budget with the peak of this rank's pipeline stage; the components stay the fullest stage's."""
        if not self.stages:
            return self
        need = self.ranks[rank]
        peak = replace(self.peak, device_bytes=need.device_bytes, low_bytes=need.low_bytes, high_bytes=need.high_bytes)
        return replace(self, peak=peak, steady_device_bytes=need.device_bytes)

    def phase(self, name: PhaseName) -> Phase | None:
        """The phase of that name, or None where the job has none (inference has no backward)."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def __str__(self) -> str:
        """A table for a notebook or a log: GiB by component and phase, and the peak with its range."""
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
        """The contract's JSON of ``vramtop estimate --json`` (schema 1)."""
        from .budget_json import budget_to_json

        return budget_to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Budget":
        """The budget that ``to_json`` made this of.

        Raises:
            InputError: it is no such JSON.
        """
        from .budget_json import budget_from_json

        return budget_from_json(data)
