"""The key-value cache of inference: bytes of one sequence on one rank."""

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...model.architecture import Architecture


def sequence_cache_bytes(job: Job, arch: Architecture, layers: int, widths: Widths, length: int) -> int:
    """Keys and values of a sequence of so many tokens, in so many layers of one rank.

    Layers with a sliding window keep no more than that (transformers' ``DynamicSlidingWindowLayer``); vLLM also the
    tokens of the step that is running (``SlidingWindowSpec``, v1/kv_cache_interface.py).
    """
    windowed = arch.sliding_layers / arch.layers if arch.sliding_window else 0.0
    seen = length
    if arch.sliding_window:
        step = prefill_tokens(job) if job.served_by_vllm else 0
        seen = min(length, arch.sliding_window - 1 + max(1, step))
    tokens = length * (1 - windowed) + seen * windowed
    return round(tokens * layers * layer_token_bytes(job, arch, widths))


def layer_token_bytes(job: Job, arch: Architecture, widths: Widths) -> int:
    """Of one token in one layer.

    Tensor-parallel ranks share the key-value heads, and each has one at least. Under latent attention vLLM keeps the
    compressed vector alone, whole on every rank (``MLAAttentionSpec``); transformers keeps what is made of it.
    """
    width = 1 if job.inference and job.inference.cache_dtype == "fp8" else widths.compute
    if arch.kv_lora_rank and job.served_by_vllm:
        return width * (arch.kv_lora_rank + arch.rope_head_dim)
    heads = -(-arch.kv_heads // job.parallel.tensor)
    return width * heads * (arch.head_dim + arch.value_head_dim)


def prefill_tokens(job: Job, *, large_card: bool = False) -> int:
    """Tokens of one step of vLLM at most.

    By default of its server 8192 on cards of 70 GiB and more (A100 excepted), else 2048 (``get_batch_defaults`` in
    vllm/engine/arg_utils.py).
    """
    given = job.inference.prefill_tokens if job.inference else None
    return given or (8192 if large_card else 2048)
