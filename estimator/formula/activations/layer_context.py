"""Quantities that the per-token activation formulas share: architecture, dtype widths, readers of each input."""

from dataclasses import dataclass
from functools import lru_cache

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...model.architecture import Architecture
from ...model.rank_share import Stage
from .linear_inputs import LinearInput, linear_input_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """One block of one pipeline stage, as the per-token formulas see it."""

    arch: Architecture
    job: Job
    widths: Widths
    readers: dict[LinearInput, tuple[int, int]]
    """Per input: linear layers of a block that read it, and how many of them need it for a weight gradient."""
    tensor_parallel: int
    """Ranks over which blocks are split."""
    adapted_expert_elements: int
    """Elements of one layer's experts, if they have adapters: peft adds A B to them before they multiply."""

    @property
    def trains_weights(self) -> bool:
        """True if the model's own weights are trained, not adapters."""
        return self.job.lora is None

    @property
    def recomputes(self) -> bool:
        """True if activation checkpointing is full or selective."""
        return self.job.training.activation_checkpointing != "none"

    @property
    def length(self) -> int:
        """Tokens of one sequence on the rank."""
        return -(-self.job.training.sequence_length // self.job.parallel.context)

    @property
    def widest_mlp(self) -> int:
        """MLP elements per token in the widest layer: the dense MLP, or all experts that process a token."""
        arch = self.arch
        return max(arch.mlp_size, arch.experts_per_token * arch.expert_mlp_size + arch.shared_mlp_size)

    @property
    def residual_ranks(self) -> int:
        """Ranks over which sequence parallelism splits the residual stream."""
        return self.tensor_parallel if self.job.parallel.sequence_parallel else 1

    @property
    def adapter_width(self) -> int:
        """Bytes per element in which adapters multiply; FSDP all-gathers them in the compute type too."""
        return self.widths.compute if self.widths.mixed and not self.widths.autocast else self.widths.adapter

    @property
    def expert_width(self) -> int:
        """Bytes per element in which experts multiply: autocast ignores grouped products (integrations/moe.py)."""
        return self.widths.weight if self.widths.autocast else self.widths.compute

    @property
    def casts_per_linear(self) -> bool:
        """True if linear layers read an fp32 norm's output under autocast, and each makes its own cast of it."""
        return self.widths.autocast or (self.widths.mixed and self.arch.norm == "layer" and self.arch.causal)

    def gathers(self, families: frozenset[str]) -> bool:
        """Return True if tensor parallelism leaves the activations of this family whole here."""
        return (
            self.tensor_parallel > 1 and self.arch.family in families and self.job.training.framework == "transformers"
        )


def layer_context(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> LayerContext:
    """Return the context of the blocks on one stage."""
    return LayerContext(
        arch=arch,
        job=job,
        widths=widths,
        readers=_readers(stage, trains_weights=job.lora is None),
        tensor_parallel=job.parallel.tensor,
        adapted_expert_elements=_adapted_expert_elements(stage),
    )


def tokens_per_rank(job: Job) -> int:
    """Tokens of one micro-batch on one rank: context parallelism splits the sequence."""
    return job.training.micro_batch * -(-job.training.sequence_length // job.parallel.context)


@lru_cache(maxsize=256)
def _readers(stage: Stage, *, trains_weights: bool) -> dict[LinearInput, tuple[int, int]]:
    adapted = {held.group.name.partition(".lora_")[0] for held in stage.parameters if held.adapter}
    found: dict[LinearInput, set[str]] = {}
    for held in stage.parameters:
        name = linear_input_of(held.group.name)
        if name and held.group.linear and held.group.layered:
            found.setdefault(name, set()).add(held.group.name.removesuffix(".weight"))
    return {
        name: (_distinct_modules(modules), _distinct_modules(modules if trains_weights else modules & adapted))
        for name, modules in found.items()
    }


@lru_cache(maxsize=256)
def _adapted_expert_elements(stage: Stage) -> int:
    experts = [held for held in stage.parameters if held.group.role == "expert"]
    if not any(held.adapter for held in experts):
        return 0
    return sum(held.elements // max(1, held.tensors) for held in experts if not held.adapter)


def _distinct_modules(names: set[str]) -> int:
    """Number of different module names: each half of a block has one of T5's three attentions."""
    return len({name.rpartition(".")[2] for name in names})
