"""Splits parameter groups over tensor- and expert-parallel ranks, and says what else decides a rank's part."""

import re

import msgspec

from ..job.settings import Parallel
from .adapters import QuantizedLayers
from .inventory import ParameterGroup
from .tensor_plans import Plan, splits
from .trained_parameters import TrainedParameters

_POSITION_TABLE = re.compile(r"\b(wpe|\w*position\w*|token_type\w*)\.weight$")


class Partitioning(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job that decide which parameters its ranks hold."""

    parallel: Parallel
    adapters: tuple[ParameterGroup, ...] | None
    """None: no adapters; every parameter is trained."""
    quantized: QuantizedLayers
    trains: bool
    trained: TrainedParameters | None
    """The model's own parameters that train; None: without adapters all, else none."""
    by_plan: bool
    """True if tensor parallelism follows the plan in a transformers model."""
    plan: Plan | None
    """The job's own tensor-parallel plan; None: the model's."""
    accumulation: int


def split_ranks(partitioning: Partitioning, group: ParameterGroup) -> int:
    """Ranks over which tensor and expert parallelism split a group; norms are whole on every rank."""
    expert = expert_ranks(partitioning, group)
    whole = group.role in ("norm", "router") or is_position_table(group)
    if group.role == "embedding" and partitioning.by_plan:
        whole = not group.name.endswith("embed_tokens.weight")  # the plans list the embedding under this name
    if partitioning.plan is not None:
        whole = not splits(partitioning.plan, _base_name(group.name))
    tensor = 1 if whole else partitioning.parallel.tensor
    return expert * tensor


def expert_ranks(partitioning: Partitioning, group: ParameterGroup) -> int:
    """Return the ranks over which expert parallelism splits a group."""
    return partitioning.parallel.expert if group.role == "expert" else 1


def is_position_table(group: ParameterGroup) -> bool:
    """Return True if it embeds positions or kinds of tokens, not tokens.

    Such tables are whole on every tensor-parallel rank, and only the first stage has them (``LanguageModelEmbedding``
    in Megatron-LM's core/models/common/embeddings: "Position embedding (serial)").
    """
    return group.role == "embedding" and _POSITION_TABLE.search(group.name) is not None


def _base_name(name: str) -> str:
    """Return the name of the weight that an adapter adapts; of other parameters their own."""
    return f"{name.partition('.lora_')[0]}.weight" if ".lora_" in name else name
