"""Bytes of the key-value cache of inference on one rank."""

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...model.architecture import Architecture
from ...model.rank_share import Stage
from .layer_context import local_length

_PREFILL_TOKENS = 2048
_PREFILL_TOKENS_LARGE_GPU = 8192
"""On GPUs of 70 GiB and more, except the A100."""


def key_value_cache_bytes(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> int:
    """Bytes of the keys and values of every token and layer that inference keeps; 0 in training, which has no cache."""
    if job.training.mode != "inference" or not arch.has_vocab_head or arch.task == "masked-lm":
        return 0
    return job.training.micro_batch * sequence_cache_bytes(job, arch, stage.layers, widths, local_length(job))


def sequence_cache_bytes(job: Job, arch: Architecture, layers: int, widths: Widths, length: int) -> int:
    """Bytes of the keys and values of one sequence.

    Layers with a sliding window keep no more than that (transformers' ``DynamicSlidingWindowLayer``); vLLM also the
    tokens of the running step (``SlidingWindowSpec``, v1/kv_cache_interface.py).

    Args:
        job: the inference job.
        arch: the model's architecture.
        layers: blocks on the rank.
        widths: bytes per element.
        length: tokens of the sequence.
    """
    windowed = arch.sliding_layers / arch.layers if arch.sliding_window else 0.0
    in_window = length
    if arch.sliding_window:
        step = prefill_tokens(job) if job.served_by_vllm else 0
        in_window = min(length, arch.sliding_window - 1 + max(1, step))
    tokens = length * (1 - windowed) + in_window * windowed
    return round(tokens * layers * layer_token_bytes(job, arch, widths))


def layer_token_bytes(job: Job, arch: Architecture, widths: Widths) -> int:
    """Bytes of one token's keys and values in one layer.

    Tensor-parallel ranks share the key-value heads, and each has one at least. Under latent attention vLLM keeps only
    the compressed vector, whole on every rank (``MLAAttentionSpec``); transformers keeps the expanded heads.
    """
    width = 1 if job.inference and job.inference.cache_dtype == "fp8" else widths.compute
    if arch.kv_lora_rank and job.served_by_vllm:
        return width * (arch.kv_lora_rank + arch.rope_head_dim)
    heads = -(-arch.kv_heads // job.parallel.tensor)
    return width * heads * (arch.head_dim + arch.value_head_dim)


def prefill_tokens(job: Job, *, large_card: bool = False) -> int:
    """Maximum tokens of one step of vLLM: as set, or its server's default for the GPU.

    Source: ``get_batch_defaults`` in vllm/engine/arg_utils.py.
    """
    setting = job.inference.prefill_tokens if job.inference else None
    return setting or (_PREFILL_TOKENS_LARGE_GPU if large_card else _PREFILL_TOKENS)
