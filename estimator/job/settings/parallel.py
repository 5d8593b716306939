"""Parallelism: the ranks over which a job is split, and the way it is split."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .value_types import Dtype, Positive, StrategyName

DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential"] | dict[str, int | str]
"""A rule by which accelerate places modules, or the device of each module: a GPU's number, ``cpu`` or ``disk``."""
_DIMENSIONS = ("data_shard", "data_replicate", "tensor", "pipeline", "context", "expert")
MAX_GPUS = 2**20
"""The largest clusters that are published have some 100,000 GPUs (Meta 24,576 twice, 2024; xAI 200,000, 2025)."""


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parallelism: the ranks over which the job is split, and the way it is split."""

    strategy: StrategyName = "none"
    """Data parallelism: copies of the model (ddp), or shards of it (FSDP, ZeRO)."""
    data_shard: Positive = 1
    """GPUs that share one copy of what FSDP or ZeRO shards."""
    data_replicate: Positive = 1
    """Copies of the model whose gradients are averaged: DDP's GPUs, or the outer dimension of HSDP."""
    tensor: Positive = 1
    """GPUs over which each layer is split (tensor parallelism)."""
    sequence_parallel: bool = False
    """Split norms and the residual stream over the tensor-parallel GPUs too."""
    tensor_plan: str | dict[str, str] | None = None
    """Tensor-parallel plan of your own, as ``module:attribute``; absent: the model's own.

    Also a table with a style of transformers' plans for each module, layer numbers as ``*``. An attribute is a dict of
    styles or a function that returns one; a traced step imports it, a closed form reads its file as data.
    """
    pipeline: Positive = 1
    """Number of pipeline stages."""
    context: Positive = 1
    """GPUs over which each sequence is split (context parallelism)."""
    expert: Positive = 1
    """GPUs over which the experts are split; they are data-parallel GPUs too."""
    reshard_after_forward: bool = True
    """FSDP frees the gathered parameters after the forward pass, and gathers them again for the backward pass."""
    fsdp_units: Literal["blocks", "model"] | None = None
    """Unit that FSDP gathers at once: one block, or the whole model; absent: as the framework does."""
    param_dtype: Dtype | None = None
    """Type in which FSDP2 gathers parameters and computes; absent: as the precision says."""
    fsdp_min_unit_parameters: Positive | None = None
    """FSDP1 makes units of at least this many parameters (size-based wrapping), not of blocks."""
    fsdp_wrap_classes: list[str] | None = None
    """Classes of modules that become FSDP units; absent: the model's blocks."""
    fsdp_backward_prefetch: Literal["pre", "post", "none"] | None = None
    """Moment when FSDP1's backward pass gathers the next unit: before or after this one's gradients; absent: pre."""
    limit_all_gathers: bool | None = None
    """FSDP1 lets the CPU run ahead of the GPU by two gathered units at most; absent: true."""
    original_parameters: bool | None = None
    """FSDP1 keeps the model's own parameters (``use_orig_params``); absent: true, and false over quantized weights."""
    reduce_dtype: Dtype | None = None
    """Type in which gradients are reduced between GPUs; absent: fp32, and the compute type under accelerate's FSDP1.

    Megatron-FSDP outside of Megatron-LM reduces in the weights' type.
    """
    gradient_dtype: Dtype | None = None
    """Type in which gradients are accumulated (DeepSpeed, Megatron-FSDP); absent: as the strategy does."""
    sync_every_micro_batch: bool | None = None
    """Gradients are reduced after every micro-batch, not after the last one only; absent: as the framework does."""
    gradient_as_bucket_view: bool = False
    """DDP's gradients are views of its buckets, not tensors beside them."""
    cpu_offload: Literal["none", "optimizer", "all"] = "none"
    """States that are kept in CPU RAM: slower."""
    sharding: Literal[
        "full", "grad_op", "hybrid", "hybrid_grad_op", "none", "optim", "optim_grads", "optim_grads_params"
    ] = "full"
    """Sharded states: full, grad_op, hybrid, hybrid_grad_op or none for FSDP1; Megatron-FSDP has its own names."""
    double_buffer: bool = False
    """Megatron-FSDP keeps its communication buffers between steps."""
    outer_sharding: Literal["none", "optim"] = "none"
    """Megatron-FSDP shards optimizer states over ``data_replicate`` too."""
    main_weights: bool | None = None
    """Megatron-FSDP keeps an fp32 copy of the weights (``main_params_dtype``); absent: under mixed precision."""
    communication_unit: Positive | None = None
    """Megatron-FSDP gathers and reduces about that many elements ahead (``suggested_communication_unit_size``)."""
    load_on_rank_zero: bool = False
    """Only the first rank of a machine loads the checkpoint (accelerate's ``cpu_ram_efficient_loading``)."""
    device_map: DeviceMap | None = None
    """Place modules on ``pipeline`` GPUs that one process uses one after the other, as transformers' ``device_map``.

    ``auto`` and ``balanced`` fill the GPUs evenly, ``balanced_low_0`` leaves room on the first, ``sequential`` fills
    one after the other; what no GPU has room for goes to CPU RAM, then to the disk. A table names the device of each
    module: a GPU's number, ``cpu`` or ``disk``.
    """
    max_memory: dict[str, int | str] | None = None
    """Most that ``device_map`` places on a device, as ``{0 = "20GiB", cpu = "60GiB"}``; absent: what is free on it."""

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec reports with the key, for more ranks than there are GPUs anywhere.

        Also for a device map beside a strategy: accelerate trains such a model in one process only.
        """
        sizes = {name: getattr(self, name) for name in _DIMENSIONS}
        if max(self.world_size, self.expert) > MAX_GPUS:
            product = " x ".join(f"{name} {size:,}" for name, size in sizes.items() if size > 1)
            raise ValueError(f"{product} is more GPUs than any cluster has (at most {MAX_GPUS:,})")
        if self.device_map is not None and self.world_size > self.pipeline:
            raise ValueError("device_map runs in one process: of the sizes, only pipeline may be larger than 1")

    @property
    def without_tables(self) -> "Parallel":
        """These settings without tables, so that they can be hashed; a device map makes no pipeline."""
        if self.device_map is None and self.max_memory is None and self.tensor_plan is None:
            return self
        pipeline = 1 if self.device_map is not None else self.pipeline  # one process, without a schedule
        return replace(self, device_map=None, max_memory=None, tensor_plan=None, pipeline=pipeline)

    @property
    def data_ranks(self) -> int:
        """Ranks with different data: data_shard x data_replicate."""
        return self.data_shard * self.data_replicate

    @property
    def world_size(self) -> int:
        """GPUs that the job needs; expert parallelism reuses the data-parallel ones."""
        return self.data_ranks * self.tensor * self.pipeline * self.context
