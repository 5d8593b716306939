"""GPU memory that vLLM or SGLang needs, and the part of a GPU that it uses for the key-value cache."""

from __future__ import annotations

from dataclasses import dataclass

_BLOCK_TOKENS = 16
"""vLLM allocates its cache in blocks of that many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNeed:
    """GPU memory of one rank of an engine by purpose, and what its cache holds.

    ``gpu_memory_utilization`` is a share of the GPU's total for all that vLLM knows of: weights, the activations of its
    largest step, memory of other libraries, and the cache, which gets the rest (``determine_available_memory``,
    vllm/v1/worker/gpu_worker.py). CUDA's context lies outside of that share; what else does depends on the version.
    SGLang's ``mem_fraction_static`` is for weights and cache (``_profile_available_bytes``, kv_cache_configurator.py).
    """

    utilization: float
    """Share of the GPU's memory that the engine takes, from 0 to 1."""
    weights: int
    """Bytes of the weights as the engine stores them."""
    activations: int
    """Bytes of the activations of the largest step: prefilling, or sampling for all sequences."""
    libraries: int
    """Bytes that are allocated outside of torch while it profiles itself."""
    graphs: int
    """Bytes of CUDA graphs; 0: it records none."""
    sequence_bytes: int
    """Cache of one sequence of full length."""
    token_bytes: int
    """Cache of one more token of a sequence."""
    sequences: int
    """Concurrent sequences that the job asks for."""
    length: int
    """Tokens of a sequence of full length."""
    cache: int | None = None
    """Bytes of the cache where that is set, in place of a share; None: it is not set."""
    engine: str = "vLLM"
    """Name of the engine."""
    share_is_of_free: bool = False
    """SGLang: the share is of what is free before the weights are loaded, and is for weights and cache alone."""
    context: int = 0
    """Bytes of the CUDA context, which comes on top of the engine's share of the GPU."""
    communication: int = 0
    """Bytes of NCCL's buffers, where these are outside of the share."""
    graphs_in_share: bool = False
    """The share includes the CUDA graphs."""
    context_in_share: bool = False
    """The share includes CUDA's context."""
    share_doubt: float = 0.0
    """The share may be larger or smaller by that much of the GPU's total: the version has no known rules."""
    sleeps: bool = False
    """It may give its memory back for a time."""

    @property
    def fixed_bytes(self) -> int:
        """Bytes before any cache."""
        return self.weights + self.activations + self.libraries

    @property
    def least_bytes(self) -> int:
        """Bytes with the cache of one sequence of full length."""
        return self.fixed_bytes + self.sequence_bytes

    @property
    def start_bytes(self) -> int:
        """Bytes without which the engine does not start: with CUDA graphs too, where its share includes them."""
        return self.least_bytes + self._counted_graphs

    @property
    def wanted_bytes(self) -> int:
        """Bytes with the cache of all sequences at full length."""
        return self.fixed_bytes + self.sequences * self.sequence_bytes

    @property
    def high_bytes(self) -> int:
        """Upper bound of ``least_bytes``."""
        return self.least_bytes + round(0.25 * self.activations) + self.libraries + self.graphs

    def asked_bytes(self, total_bytes: int) -> int:
        """Return the bytes that it takes of a GPU, without what is outside of its share."""
        if self.cache is not None:
            return self.fixed_bytes + self.cache
        if self.share_is_of_free:
            static = int(self.utilization * (total_bytes - self.context - self.communication))
            return static + self.activations + self.libraries
        return int(self.utilization * total_bytes)

    def cache_bytes(self, total_bytes: int) -> int:
        """Return the bytes that remain for the cache; 0 if none do."""
        if self.cache is not None:
            return self.cache
        return max(0, self.asked_bytes(total_bytes) - self.fixed_bytes - self._counted_graphs)

    @property
    def _counted_graphs(self) -> int:
        """CUDA graphs, as far as they lessen the cache."""
        return self.graphs if self.graphs_in_share else 0

    def cache_tokens(self, total_bytes: int) -> int:
        """Return the tokens that the cache holds, as vLLM logs them (``GPU KV cache size``)."""
        return self.tokens_in(self.cache_bytes(total_bytes))

    def concurrency(self, total_bytes: int) -> float:
        """Return the number of concurrent sequences of full length (vLLM's ``Maximum concurrency``)."""
        return self.sequences_in(self.cache_bytes(total_bytes))

    def tokens_in(self, cache_bytes: int) -> int:
        """Return the tokens that a cache of this size holds: whole blocks."""
        return int(self.sequences_in(cache_bytes) * self.length) // _BLOCK_TOKENS * _BLOCK_TOKENS

    def sequences_in(self, cache_bytes: int) -> float:
        """Return the number of sequences of full length that a cache of this size holds."""
        return cache_bytes / max(1, self.sequence_bytes)

    def describe_cache(self, cache_bytes: int) -> str:
        """Return what a cache of this size holds: ``1,020,464 tokens, 31.9 sequences of 32,000 at once``."""
        sequences = f"{self.sequences_in(cache_bytes):.1f} sequences of {self.length:,} at once"
        return f"{self.tokens_in(cache_bytes):,} tokens, {sequences}"
