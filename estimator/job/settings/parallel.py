"""Parallelism: the ranks over which a job is split, and the way it is split."""

from typing import Literal

from msgspec import Struct

from .value_types import Dtype, Positive, StrategyName

_DIMENSIONS = ("data_shard", "data_replicate", "tensor", "pipeline", "context", "expert")
MAX_GPUS = 2**20
"""The largest clusters that are published have some 100,000 GPUs (Meta 24,576 twice, 2024; xAI 200,000, 2025)."""


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parallelism: the ranks over which the job is split, and the way it is split."""

    strategy: StrategyName = "none"
    """How the job uses several GPUs: copies of the model (ddp), or shards of it (FSDP, ZeRO)."""
    data_shard: Positive = 1
    """GPUs that share one copy of what FSDP or ZeRO shards."""
    data_replicate: Positive = 1
    """Copies of the model whose gradients are averaged: DDP's GPUs, or the outer dimension of HSDP."""
    tensor: Positive = 1
    """GPUs over which each layer is split (tensor parallelism)."""
    sequence_parallel: bool = False
    """Split norms and the residual stream over the tensor-parallel GPUs too."""
    tensor_plan: str | None = None
    """Tensor-parallel plan of your own, as ``module:attribute``; absent: the model's own."""
    pipeline: Positive = 1
    """Number of pipeline stages."""
    context: Positive = 1
    """GPUs over which each sequence is split (context parallelism)."""
    expert: Positive = 1
    """GPUs over which the experts are split; they are data-parallel GPUs too."""
    reshard_after_forward: bool = True
    """FSDP frees the gathered parameters after the forward pass, and gathers them again for the backward pass."""
    fsdp_units: Literal["blocks", "model"] | None = None
    """What FSDP gathers at once: one block, or the whole model; absent: as the framework does."""
    fsdp_min_unit_parameters: Positive | None = None
    """FSDP1 makes units of at least this many parameters (size-based wrapping), not of blocks."""
    fsdp_wrap_classes: list[str] | None = None
    """Classes of modules that become FSDP units; absent: the model's blocks."""
    fsdp_backward_prefetch: Literal["pre", "post", "none"] | None = None
    """When FSDP1's backward pass gathers the next unit: before or after this one's gradients; absent: pre."""
    limit_all_gathers: bool = True
    """FSDP1 lets the CPU run ahead of the GPU by two gathered units at most."""
    reduce_dtype: Dtype = "fp32"
    """Type in which gradients are reduced between GPUs."""
    cpu_offload: Literal["none", "optimizer", "all"] = "none"
    """States that are kept in CPU RAM: slower."""
    sharding: Literal[
        "full", "grad_op", "hybrid", "hybrid_grad_op", "none", "optim", "optim_grads", "optim_grads_params"
    ] = "full"
    """What is sharded: full, grad_op, hybrid or hybrid_grad_op for FSDP1, the others for Megatron-FSDP."""
    double_buffer: bool = False
    """Megatron-FSDP keeps its communication buffers between steps."""
    load_on_rank_zero: bool = False
    """Only the first rank of a machine loads the checkpoint (accelerate's ``cpu_ram_efficient_loading``)."""

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec reports with the key, for more ranks than there are GPUs anywhere."""
        sizes = {name: getattr(self, name) for name in _DIMENSIONS}
        if max(self.world_size, self.expert) > MAX_GPUS:
            product = " x ".join(f"{name} {size:,}" for name, size in sizes.items() if size > 1)
            raise ValueError(f"{product} is more GPUs than any cluster has (at most {MAX_GPUS:,})")

    @property
    def data_ranks(self) -> int:
        """Ranks with different data: data_shard x data_replicate."""
        return self.data_shard * self.data_replicate

    @property
    def world_size(self) -> int:
        """GPUs that the job needs; expert parallelism reuses the data-parallel ones."""
        return self.data_ranks * self.tensor * self.pipeline * self.context
