"""Data-parallel strategies and precisions: what they shard, and the dtypes that they use, one record each.

A new strategy is one row of ``STRATEGIES``, a new precision one row of ``PRECISIONS``.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

ZeroStage = Literal[0, 1, 2, 3]
"""Sharded states (arXiv:1910.02054): 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too."""


class Shards(Struct, frozen=True, kw_only=True):
    """Ranks over which each kind of state is sharded; 1: every rank holds it whole."""

    weights: int
    gradients: int
    optimizer: int

    @classmethod
    def of_stage(cls, stage: ZeroStage, *, ranks: int) -> "Shards":
        """Return the shards of a ZeRO stage over that many ranks."""
        return cls(
            weights=ranks if stage >= 3 else 1,
            gradients=ranks if stage >= 2 else 1,
            optimizer=ranks if stage >= 1 else 1,
        )


class Strategy(Struct, frozen=True, kw_only=True, eq=False):
    """Rules of one data-parallel strategy."""

    name: str
    """Value of the job file's ``parallel.strategy``."""
    zero_stage: ZeroStage
    stages_by_sharding: Mapping[str, ZeroStage] = field(default_factory=dict)
    """Other stages, by the job file's ``parallel.sharding``."""
    full_sharding: str = "full"
    """Its own word for ``full``, which the job file takes too."""
    libraries: tuple[str, ...] = ()
    """Distributions that provide it, of which one is enough; empty: torch itself."""
    fsdp: bool = False
    """torch's fully sharded data parallel, version 1 or 2."""
    replicates: bool = True
    """Data-parallel ranks work on one model; False: nothing is reduced between them."""
    buckets: bool = False
    """Gradients are reduced in buckets that stay allocated (DDP)."""
    megatron_fsdp: bool = False
    """Megatron-FSDP."""
    deepspeed: bool = False
    """DeepSpeed's engine: 16-bit weights, and fp32 master weights in the optimizer."""
    low_precision_weights: bool = False
    """Mixed precision keeps 16-bit weights, fp32 gradients and fp32 master weights (Megatron's), not fp32 weights."""
    flat_parameters: bool = False
    """A unit is one flat parameter, whose gradient covers what is frozen in it too."""
    cpu_offload: tuple[Literal["optimizer", "all"], ...] = ()
    """Values of ``parallel.cpu_offload`` that it offers."""
    quantized_weights: bool = False
    """It works with 4-bit frozen weights."""

    @property
    def fsdp2(self) -> bool:
        """True if it shards each parameter by itself (FSDP2), not a flat parameter per unit."""
        return self.fsdp and not self.flat_parameters

    def stage(self, sharding: str) -> ZeroStage:
        """Return what is sharded under a value of the job file's ``parallel.sharding``."""
        return self.stages_by_sharding.get(sharding, self.zero_stage)


_STRATEGIES = (
    Strategy(name="none", zero_stage=0, replicates=False, quantized_weights=True),
    Strategy(name="ddp", zero_stage=0, buckets=True, quantized_weights=True),
    Strategy(
        name="fsdp1",
        zero_stage=3,
        stages_by_sharding={"none": 0},
        fsdp=True,
        flat_parameters=True,
        cpu_offload=("all",),
    ),
    Strategy(name="fsdp2", zero_stage=3, fsdp=True, cpu_offload=("all",), quantized_weights=True),
    Strategy(name="zero1", zero_stage=1, libraries=("deepspeed",), deepspeed=True, cpu_offload=("optimizer",)),
    Strategy(name="zero2", zero_stage=2, libraries=("deepspeed",), deepspeed=True, cpu_offload=("optimizer",)),
    Strategy(
        name="zero3",
        zero_stage=3,
        libraries=("deepspeed",),
        deepspeed=True,
        cpu_offload=("optimizer", "all"),
    ),
    Strategy(
        name="megatron-fsdp",
        zero_stage=3,
        stages_by_sharding={"none": 0, "optim": 1, "optim_grads": 2},
        full_sharding="optim_grads_params",
        libraries=("megatron-fsdp", "megatron-core"),
        megatron_fsdp=True,
        low_precision_weights=True,
    ),
)
STRATEGIES = {row.name: row for row in _STRATEGIES}
"""By the job file's ``parallel.strategy``."""


class Precision(Struct, frozen=True, kw_only=True, eq=False):
    """Dtypes of one setting of ``training.precision``."""

    name: str
    dtype: str
    """dtype in which matrices are multiplied, as torch names it."""
    width: int
    """Bytes per element of ``dtype``."""
    mixed: bool = False
    """Weights are fp32, and autocast or FSDP casts them to ``dtype``."""

    @property
    def half_weights(self) -> bool:
        """True if the weights themselves have 16 bits."""
        return self.width == 2 and not self.mixed


_PRECISIONS = (
    Precision(name="fp32", dtype="float32", width=4),
    Precision(name="fp16-mixed", dtype="float16", width=2, mixed=True),
    Precision(name="bf16-mixed", dtype="bfloat16", width=2, mixed=True),
    Precision(name="bf16", dtype="bfloat16", width=2),
    Precision(name="fp16", dtype="float16", width=2),
)
PRECISIONS = {row.name: row for row in _PRECISIONS}
"""By the job file's ``training.precision``."""
DTYPE_NAMES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half"), "fp16"),
    **dict.fromkeys(("float32", "fp32", "float"), "fp32"),
}
"""The job file's name for each name of a dtype."""
HALF = ("bf16", "fp16")
"""Dtypes of 16 bits."""
