"""GPUs and sharding as one choice: the kind of data parallelism, and the number of GPUs.

The job file has three keys for it: the strategy, the ranks that share one copy of the states, and the copies.
"""

from collections.abc import Mapping, Sequence
from typing import Any

SHARDING, GPUS = "sharding", "gpus"
"""Fields of the form that stand for the three keys."""
STRATEGY, SHARD, REPLICATE = "parallel.strategy", "parallel.data_shard", "parallel.data_replicate"
SHARDING_KEYS = (STRATEGY, SHARD, REPLICATE)
_WORDS = {
    "none": "none",
    "ddp": "DDP",
    "fsdp2": "FSDP",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "zero1": "ZeRO-1",
    "fsdp1": "FSDP1",
    "megatron-fsdp": "Megatron-FSDP",
}
"""Words of strategies, the usual ones first; a strategy without one has its own name."""


def sharding_words(strategies: Sequence[str]) -> tuple[str, ...]:
    """Return the words of these strategies, the usual ones first."""
    usual = [name for name in _WORDS if name in strategies]
    return tuple(sharding_word(name) for name in dict.fromkeys([*usual, *strategies]))


def sharding_word(strategy: str) -> str:
    """Return the word of a strategy of the job file."""
    return _WORDS.get(strategy, strategy)


def strategy_of(word: str) -> str:
    """Return the strategy of a word."""
    return next((name for name, known in _WORDS.items() if known == word), word)


def shown_sharding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of sharding and the number of GPUs that the job's three values stand for."""
    shard, replicate = values[SHARD], values[REPLICATE]
    gpus = None if shard is None or replicate is None else shard * replicate
    return {SHARDING: None if values[STRATEGY] is None else sharding_word(values[STRATEGY]), GPUS: gpus}


def sharding_values(strategy: str, gpus: int) -> dict[str, Any]:
    """Return the job's three values for a strategy over so many GPUs."""
    copies = strategy in ("none", "ddp")
    return {STRATEGY: strategy, SHARD: 1 if copies else gpus, REPLICATE: gpus if copies else 1}
