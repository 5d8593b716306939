"""What the per-token formulas of activations look at: the job, the shape, and who reads what in a block."""

from dataclasses import dataclass
from functools import lru_cache

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...model.architecture import Architecture
from ...model.rank_share import Stage
from .linear_inputs import Slot, slot_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """What the per-token formulas look at."""

    arch: Architecture
    job: Job
    widths: Widths
    consumers: dict[Slot, tuple[int, int]]
    """By slot: linear layers per block that read it, and how many of these need their input for a weight gradient."""
    tensor: int
    """Ranks over which blocks are split."""
    adapted_experts: int
    """Elements of the experts of one layer, where they are adapted: peft adds A B to them before they multiply."""

    @property
    def full(self) -> bool:
        """The model's own weights are trained."""
        return self.job.lora is None

    @property
    def checkpoints(self) -> bool:
        """Blocks are recomputed, all of them or in part."""
        return self.job.training.activation_checkpointing != "none"

    @property
    def length(self) -> int:
        """Tokens of one sequence on the rank."""
        return -(-self.job.training.sequence_length // self.job.parallel.context)

    @property
    def mlp_size(self) -> int:
        """Per token, of the widest layer: the MLP's, or of all the experts that see it."""
        arch = self.arch
        return max(arch.mlp_size, arch.experts_per_token * arch.expert_mlp_size + arch.shared_mlp_size)

    @property
    def residual_split(self) -> int:
        """Ranks over which the residual stream is split."""
        return self.tensor if self.job.parallel.sequence_parallel else 1

    @property
    def adapter(self) -> int:
        """Bytes per element in which adapters multiply; FSDP gathers them in the compute type too."""
        return self.widths.compute if self.widths.mixed and not self.widths.autocast else self.widths.adapter

    @property
    def experts(self) -> int:
        """Bytes per element in which experts multiply: autocast knows no grouped products (integrations/moe.py)."""
        return self.widths.weight if self.widths.autocast else self.widths.compute

    @property
    def casts_anew(self) -> bool:
        """Linear layers read an fp32 norm's output under autocast, and each casts it for itself."""
        return self.widths.autocast or (self.widths.mixed and self.arch.norm == "layer" and self.arch.causal)

    def gathers(self, families: frozenset[str]) -> bool:
        """Tensor parallelism leaves this family's activations whole here."""
        return self.tensor > 1 and self.arch.family in families and self.job.training.framework == "transformers"


def layer_context(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> LayerContext:
    """Of the blocks of one stage."""
    return LayerContext(
        arch=arch,
        job=job,
        widths=widths,
        consumers=_consumers(stage, full=job.lora is None),
        tensor=job.parallel.tensor,
        adapted_experts=_adapted_experts(stage),
    )


def tokens_per_rank(job: Job) -> int:
    """Tokens of one micro-batch on one rank: context parallelism splits the sequence."""
    return job.training.micro_batch * -(-job.training.sequence_length // job.parallel.context)


@lru_cache(maxsize=256)
def _consumers(stage: Stage, *, full: bool) -> dict[Slot, tuple[int, int]]:
    adapted = {held.group.name.partition(".lora_")[0] for held in stage.held if held.adapter}
    found: dict[Slot, set[str]] = {}
    for held in stage.held:
        slot = slot_of(held.group.name)
        if slot and held.group.linear and held.group.layered:
            found.setdefault(slot, set()).add(held.group.name.removesuffix(".weight"))
    return {slot: (_kinds(names), _kinds(names if full else names & adapted)) for slot, names in found.items()}


@lru_cache(maxsize=256)
def _adapted_experts(stage: Stage) -> int:
    experts = [held for held in stage.held if held.group.role == "expert"]
    if not any(held.adapter for held in experts):
        return 0
    return sum(held.elements // max(1, held.tensors) for held in experts if not held.adapter)


def _kinds(names: set[str]) -> int:
    """Of T5's three attentions each block half has one."""
    return len({name.rpartition(".")[2] for name in names})
