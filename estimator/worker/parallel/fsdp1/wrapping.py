"""A model wrapped with FSDP1 as accelerate wraps it, on fake tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...model.dtypes import DTYPES
from .checkpoints import checkpoint_units
from .units import wrap_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...request.request import Parallel, Request

_PREFETCH = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST"}


def wrap_fsdp1(
    model: Any,
    request: Request,
    mesh: Any,
    compute_dtype: Any,
    *,
    materialize: Callable[[Any], None] | None = None,
) -> Any:
    """Return the model in FSDP1, with the units and options of accelerate (``Accelerator.prepare_model``, 1.15).

    Args:
        model: a transformers model.
        request: the job.
        mesh: of the job.
        compute_dtype: of gathered parameters under mixed precision; None: their own dtype.
        materialize: gives a module's parameters without storage one, a unit at a time; None: all have theirs.

    Raises:
        UnsupportedError: the model has no such units.
    """
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )

    parallel, policy = request.parallel, None
    if compute_dtype is not None:
        reduced = DTYPES.get(parallel.reduce_dtype or "", compute_dtype)
        policy = MixedPrecision(param_dtype=compute_dtype, reduce_dtype=reduced, buffer_dtype=compute_dtype)
    prefetch = _PREFETCH.get(parallel.fsdp_backward_prefetch or "pre")
    names = tuple(name for name in ("replicate", "shard") if name in mesh.mesh_dim_names)
    wrapped = FullyShardedDataParallel(
        model,
        device_mesh=mesh[names[-1:] if parallel.flat_whole else names],
        sharding_strategy=ShardingStrategy[_sharding_strategy(parallel)],
        auto_wrap_policy=wrap_policy(model, parallel, adapters=request.lora is not None and not request.loop.own_loss),
        cpu_offload=CPUOffload(offload_params=parallel.cpu_offload == "all"),
        mixed_precision=policy,
        backward_prefetch=BackwardPrefetch[prefetch] if prefetch else None,
        limit_all_gathers=parallel.limit_all_gathers is not False,
        use_orig_params=_keeps_parameters(request),
        device_id=torch.device(request.device),
        param_init_fn=materialize,
    )
    if request.checkpoints_units and request.training.activation_checkpointing == "full":
        checkpoint_units(model, wrapped)
    return wrapped


def _keeps_parameters(request: Request) -> bool:
    """Return ``use_orig_params``: true under the Trainer, false in most programs for quantized weights."""
    stated, lora = request.parallel.original_parameters, request.lora
    return stated if stated is not None else lora is None or lora.quantization == "none"


def _sharding_strategy(parallel: Parallel) -> str:
    """Return torch's name of the sharding strategy: a hybrid one exactly where the shards have copies.

    For one rank torch takes ``NO_SHARD`` itself (``_init_core_state`` in ``_init_utils.py``).
    """
    if parallel.flat_whole:
        return "NO_SHARD"
    keeps_gathered = parallel.sharding in ("grad_op", "hybrid_grad_op") or not parallel.reshard_after_forward
    if parallel.data_replicate > 1:
        return "_HYBRID_SHARD_ZERO2" if keeps_gathered else "HYBRID_SHARD"
    return "SHARD_GRAD_OP" if keeps_gathered else "FULL_SHARD"
