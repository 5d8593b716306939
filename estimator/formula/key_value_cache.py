"""Bytes of the key-value cache of inference on one rank."""

from ..job.resolved_job import ResolvedJob
from ..model.architecture import Architecture
from ..model.rank_share import Stage

_PREFILL_TOKENS = 2048
_LONGEST_AT_ONCE = 32_768
"""Longer models had chunked prefill turned on before 0.8."""
_PREFILL_TOKENS_LARGE_GPU = 8192
"""On GPUs of 70 GiB and more, except the A100."""


def key_value_cache_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Bytes of the keys and values of every token and layer that inference keeps; 0 in training."""
    if job.trains or not arch.has_vocab_head or arch.task == "masked-lm":
        return 0
    return job.sequences * sequence_cache_bytes(job, arch, stage.layers, job.local_length)


def generation_cache_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Bytes of the keys and values of all sequences that transformers generates at once during training."""
    if not job.generated_sequences or not arch.has_vocab_head:
        return 0
    return job.generated_sequences * sequence_cache_bytes(job, arch, stage.layers, job.local_length)


def sequence_cache_bytes(job: ResolvedJob, arch: Architecture, layers: int, length: int) -> int:
    """Bytes of the keys and values of one sequence.

    Layers with a sliding window keep no more than that once a token is generated; at the end of the prompt theirs is a
    view of all its keys and values (transformers' ``DynamicSlidingWindowLayer``). vLLM has them keep the tokens of the
    running step besides (``SlidingWindowSpec``, v1/kv_cache_interface.py).

    Args:
        job: the inference job.
        arch: the model's architecture.
        layers: blocks on the rank.
        length: tokens of the sequence.
    """
    windowed = arch.sliding_layers / arch.layers if arch.sliding_window else 0.0
    in_window = length
    if arch.sliding_window and (job.is_served or job.trains):
        step = prefill_tokens(job) if job.is_served else 0
        in_window = min(length, arch.sliding_window - 1 + max(1, step))
    tokens = length * (1 - windowed) + in_window * windowed
    return round(tokens * layers * layer_token_bytes(job, arch))


def layer_token_bytes(job: ResolvedJob, arch: Architecture) -> int:
    """Bytes of one token's keys and values in one layer.

    Tensor-parallel ranks share the key-value heads, and each has one at least. Under latent attention vLLM keeps only
    the compressed vector, whole on every rank (``MLAAttentionSpec``); transformers before 5.15 the expanded heads.
    """
    width = 1 if job.inference and job.inference.cache_dtype == "fp8" else job.widths.compute
    if arch.kv_lora_rank and (job.is_served or job.versions.caches_latents):
        return width * (arch.kv_lora_rank + arch.rope_head_dim)
    heads = -(-arch.kv_heads // job.parallel.tensor)
    return width * heads * (arch.head_dim + arch.value_head_dim)


def prefill_tokens(job: ResolvedJob, *, large_card: bool = False) -> int:
    """Maximum tokens of one step of vLLM: as set, or its server's default for the GPU.

    Source: ``get_batch_defaults`` in vllm/engine/arg_utils.py; ``SchedulerConfig`` in vllm/config.py before 0.8.
    """
    setting = job.inference.prefill_tokens if job.inference else None
    if setting is None and job.versions.prefills_at_once:
        length = job.training.sequence_length
        return max(length, _PREFILL_TOKENS) if length <= _LONGEST_AT_ONCE else _PREFILL_TOKENS
    return setting or (_PREFILL_TOKENS_LARGE_GPU if large_card else _PREFILL_TOKENS)
