"""Megatron-FSDP's settings, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...model.dtypes import DTYPES

if TYPE_CHECKING:
    from ...request.request import Request

_STAGES = {"none": 0, "optim": 1, "optim_grads": 2}


@dataclass(frozen=True)
class MegatronSettings:
    """Settings of Megatron-FSDP on which memory depends."""

    stage: int
    """``zero_dp_strategy``: what is sharded of optimizer states (1), gradients (2) and weights (3)."""
    ranks: int
    """Ranks over which it is sharded."""
    unit: int | None
    """``suggested_communication_unit_size``: elements that are communicated ahead; None: from the size of the units."""
    main_weights: bool
    """The optimizer steps an fp32 copy of 16-bit weights (``main_params_dtype``)."""
    main_gradients: Any
    """dtype in which gradients are accumulated (``main_grads_dtype``); None: that of their parameters."""
    communicated: Any
    """dtype of gradients under reduction (``grad_comm_dtype``); None: that in which they are accumulated."""
    doubles: bool = False
    """Buckets of alike units have two buffers, which stay (``fsdp_double_buffer``)."""
    frees_outside: bool = False
    """What is outside of the units is freed after each pass, and gathers units ahead in every one (before 0.5)."""
    lazy_states: bool = False
    """The first step makes the optimizer's states, and a reduction a tensor of its own (before 0.4)."""
    whole_modules: bool = False
    """The gradients of a module are copied when all of them exist (before 0.3)."""


def megatron_settings(request: Request, dtype: Any) -> MegatronSettings | None:
    """Return the settings of a job that Megatron-FSDP runs; None: another strategy, or inference.

    Args:
        request: the job.
        dtype: of the weights.
    """
    parallel = request.parallel
    if not parallel.megatron_fsdp or request.training.mode == "inference":
        return None
    low = dtype != torch.float32
    reduced, stated = DTYPES.get(parallel.reduce_dtype or "", dtype), DTYPES.get(parallel.gradient_dtype or "")
    accumulated = torch.float32 if stated is None and low and reduced == torch.float32 else stated
    accumulated = None if accumulated == dtype else accumulated
    return MegatronSettings(
        stage=_STAGES.get(parallel.sharding, 3),
        ranks=parallel.data_shard,
        unit=parallel.communication_unit,
        main_weights=bool(parallel.main_weights) and low,
        main_gradients=accumulated,
        communicated=None if accumulated is None and reduced == dtype else reduced,
        doubles=parallel.double_buffer,
        frees_outside=request.older.frees_outside_units,
        lazy_states=request.older.lazy_states,
        whole_modules=request.older.reduces_whole_modules,
    )
