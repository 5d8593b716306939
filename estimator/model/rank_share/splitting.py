"""How a job splits and stores parameter groups: over tensor- and expert-parallel ranks, and quantized."""

from dataclasses import dataclass
from math import prod

from ...job import Parallel, quantized_bytes
from ..parameters import ParameterGroup
from ..placement import Plan, splits
from ..trained_parameters import TrainedParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """The settings of a job that decide which parameters its ranks hold."""

    parallel: Parallel
    adapters: tuple[ParameterGroup, ...] | None
    """None: no adapters; every parameter is trained."""
    quantization: str | None
    trains: bool
    trained: TrainedParameters | None
    """Which of the model's own parameters train; None: without adapters all, else none."""
    quantizes_head: bool
    by_plan: bool
    """True if tensor parallelism follows the plan in a transformers model."""
    plan: Plan | None
    """The job's own tensor-parallel plan; None: the model's."""
    accumulation: int


def split_ranks(partitioning: Partitioning, group: ParameterGroup) -> int:
    """Ranks over which tensor and expert parallelism split a group; norms are whole on every rank."""
    expert = partitioning.parallel.expert if group.role == "expert" else 1
    whole = group.role in ("norm", "router")
    if group.role == "embedding" and partitioning.by_plan:
        whole = not group.name.endswith("embed_tokens.weight")  # the plans list the embedding under this name
    if partitioning.plan is not None:
        whole = not splits(partitioning.plan, _base_name(group.name))
    tensor = 1 if whole else partitioning.parallel.tensor
    return expert * tensor


def _base_name(name: str) -> str:
    """Return the name of the weight that an adapter adapts; of other parameters their own."""
    return f"{name.partition('.lora_')[0]}.weight" if ".lora_" in name else name


def is_quantized(partitioning: Partitioning, group: ParameterGroup) -> bool:
    """Return True if bitsandbytes quantizes a group: linear layers without the head, not experts in a fused tensor.

    Lightning's plugin replaces the head too (``BitsandbytesPrecision``; LitGPT passes no exceptions).
    """
    if partitioning.quantization is None:
        return False
    if partitioning.quantizes_head:
        return group.linear
    return group.linear and group.role != "head" if group.quantized is None else group.quantized


def stored_bytes(partitioning: Partitioning, group: ParameterGroup, elements: int) -> int | None:
    """Return the bytes of a part of a group as bitsandbytes stores it; None: it does not quantize it."""
    if partitioning.quantization is None or not is_quantized(partitioning, group):
        return None
    whole = quantized_bytes(group.shape, partitioning.quantization, transposed=group.transposed)
    return round(whole * elements / prod(group.shape))
