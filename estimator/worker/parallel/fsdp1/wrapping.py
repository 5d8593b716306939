"""A model wrapped with FSDP1 as accelerate wraps it, on fake tensors."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

from ..data_parallel import REDUCE_DTYPES
from .units import unit_classes, wrap_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...memory.tracker import StorageTracker
    from ...request.request import Request

STRATEGIES = {
    "full": "FULL_SHARD",
    "grad_op": "SHARD_GRAD_OP",
    "hybrid": "HYBRID_SHARD",
    "hybrid_grad_op": "_HYBRID_SHARD_ZERO2",
}
"""torch's names of the sharding strategies, by the job's."""
_PREFETCH = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST"}


def wrap_fsdp1(model: Any, request: Request, mesh: Any, compute_dtype: Any) -> Any:
    """Return the model in FSDP1, with the units and options of accelerate (``Accelerator.prepare_model``, 1.15).

    Args:
        model: a transformers model.
        request: the job.
        mesh: of the job.
        compute_dtype: of gathered parameters under mixed precision; None: their own dtype.

    Raises:
        UnsupportedError: the model has no such units.
    """
    from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp import ShardingStrategy

    parallel, lora = request.parallel, request.lora is not None
    replicated = parallel.data_replicate > 1
    strategy = STRATEGIES.get(parallel.sharding, "FULL_SHARD")
    if replicated and not strategy.endswith("HYBRID_SHARD") and "HYBRID" not in strategy:
        strategy = "_HYBRID_SHARD_ZERO2" if strategy == "SHARD_GRAD_OP" else "HYBRID_SHARD"
    elif not replicated:
        strategy = {"HYBRID_SHARD": "FULL_SHARD", "_HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}.get(strategy, strategy)
    policy = None
    if compute_dtype is not None:
        reduced = REDUCE_DTYPES.get(parallel.reduce_dtype or "", compute_dtype)
        policy = MixedPrecision(param_dtype=compute_dtype, reduce_dtype=reduced, buffer_dtype=compute_dtype)
    prefetch = _PREFETCH.get(parallel.fsdp_backward_prefetch or "pre")
    names = ("replicate", "shard") if replicated else ("shard",)
    wrapped = FullyShardedDataParallel(
        model,
        device_mesh=mesh[names],
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=wrap_policy(model, parallel, adapters=lora),
        mixed_precision=policy,
        cpu_offload=CPUOffload(offload_params=True) if parallel.cpu_offload == "all" else None,
        backward_prefetch=BackwardPrefetch[prefetch] if prefetch else None,
        limit_all_gathers=parallel.limit_all_gathers is not False,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    return wrapped
