"""DeepSpeed's settings, with its defaults (``runtime/zero/config.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model.build import DTYPES

if TYPE_CHECKING:
    from ...request.request import Request


@dataclass(frozen=True)
class ZeroSettings:
    """Settings of DeepSpeed's engine on which memory depends; sizes are numbers of elements."""

    stage: int
    ranks: int
    """Ranks over which ZeRO shards."""
    reduce_bucket: int = 500_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    prefetch_bucket: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    persistence_threshold: int = 100_000
    sub_group: int = 1_000_000_000
    accumulates_in: Any = None
    """dtype in which gradients are accumulated; None: that of the weights."""
    offloads_optimizer: bool = False
    offloads_weights: bool = False
    scales_loss: bool = False
    """Gradients are searched for infinities (fp16)."""


def zero_settings(request: Request) -> ZeroSettings | None:
    """Return the settings of a job that DeepSpeed runs; None: another strategy, or inference."""
    parallel = request.parallel
    if not parallel.zero_stage or request.training.mode == "inference":
        return None
    given = {name: value for name, value in (request.zero or {}).items() if value is not None}
    given.pop("allgather_bucket", None)  # without effect since torch gathers into one tensor
    stage = parallel.zero_stage
    return ZeroSettings(
        stage=stage,
        ranks=parallel.data_shard * parallel.data_replicate,
        accumulates_in=DTYPES.get(parallel.gradient_dtype or ""),
        offloads_optimizer=parallel.cpu_offload != "none",
        offloads_weights=parallel.cpu_offload == "all",
        scales_loss=request.training.precision.startswith("fp16"),
        **{"overlap_comm": stage == 3, **given},
    )
