"""What vLLM takes of a card, and what is left of it for the key-value cache."""

from dataclasses import dataclass

_BLOCK_TOKENS = 16
"""vLLM's cache comes in blocks of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNeed:
    """Of one rank.

    ``gpu_memory_utilization`` is a share of the card's total, for all that vLLM knows of: weights, the activations of
    its largest step, what other libraries take, and the cache, which gets what the others leave
    (``determine_available_memory``, vllm/v1/worker/gpu_worker.py). CUDA's context lies outside of that share.
    """

    utilization: float
    weights: int
    activations: int
    """Of the fullest step: prefilling, or sampling for all sequences."""
    libraries: int
    """What is allocated past torch while it profiles itself."""
    graphs: int
    """CUDA graphs, which newer versions count in and older ones do not."""
    sequence_bytes: int
    """The cache of one sequence of full length."""
    token_bytes: int
    """The cache of one more token of a sequence."""
    sequences: int
    """At once, as the job asks."""
    length: int

    @property
    def fixed_bytes(self) -> int:
        """Before any cache."""
        return self.weights + self.activations + self.libraries

    @property
    def least_bytes(self) -> int:
        """With room for one sequence of full length, without which vLLM does not start."""
        return self.fixed_bytes + self.sequence_bytes

    @property
    def wanted_bytes(self) -> int:
        """With room for all sequences at full length."""
        return self.fixed_bytes + self.sequences * self.sequence_bytes

    @property
    def high_bytes(self) -> int:
        """The upper bound of ``least_bytes``."""
        return self.least_bytes + round(0.25 * self.activations) + self.libraries + self.graphs

    def asked_bytes(self, total_bytes: int) -> int:
        """What vLLM takes of a card, of which so much can be had at all."""
        return int(self.utilization * total_bytes)

    def cache_bytes(self, total_bytes: int) -> int:
        """What is left for the cache; 0 where nothing is."""
        return max(0, self.asked_bytes(total_bytes) - self.fixed_bytes)

    def cache_tokens(self, total_bytes: int) -> int:
        """Tokens that the cache holds, as vLLM logs them (``GPU KV cache size``)."""
        held = self.cache_bytes(total_bytes) * self.length / max(1, self.sequence_bytes)
        return int(held) // _BLOCK_TOKENS * _BLOCK_TOKENS

    def concurrency(self, total_bytes: int) -> float:
        """Sequences of full length at once (vLLM's ``Maximum concurrency``)."""
        return self.cache_bytes(total_bytes) / max(1, self.sequence_bytes)
