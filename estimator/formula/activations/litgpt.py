"""What LitGPT's own model and its finetuning scripts hold: saved tensors of a block, and inputs of quantized layers.

Read off litgpt 0.3 to 0.5 (``model.py``, ``lora.py``, ``finetune/*.py``) and Lightning Fabric (``wrappers.py``,
``plugins/precision``), whose wrapper casts the model's outputs to fp32. The scripts' variables ``logits`` and ``loss``
keep the last micro-batch's until the next one's replace them. Legend: T tokens on the rank, h hidden size, f MLP size.
"""

from collections.abc import Mapping

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...job.version_rules import keeps_quantized_inputs, runs_longest_first, scales_norms_in_fp32
from ...model.architecture import Architecture

HEAD_CHUNK = 128
"""Positions per pass of the head under adapters (``lm_head_chunk_size``), and per chunk of the loss."""
Consumers = Mapping[str, tuple[int, int]]
"""By input of linear layers: how many read it, and how many of these need it for a weight gradient."""


def attention_per_token(job: Job, arch: Architecture, widths: Widths, consumers: Consumers) -> float:
    """Bytes that attention saves per token, with a fused kernel: q, k, v, output, log-sum-exp; and under adapters."""
    c = widths.compute
    whole = arch.query_size + arch.key_size + arch.value_size
    if arch.kv_heads == arch.heads:  # values stay a view of the product, queries and keys are rotated copies
        size = arch.query_size + arch.key_size + whole
    elif arch.kv_heads == 1:  # the one head's values are expanded in place, its keys copied to all heads
        size = 2 * arch.query_size + whole
    else:
        size = 3 * arch.query_size
    saved = c * (size + arch.attention_output_size) + 4 * arch.heads
    # the output comes laid out as the queries are, so that the projection reads a copy of it
    if job.lora is None:
        saved += c * arch.attention_output_size
    elif consumers.get("attention_out", (1, 0))[1]:
        saved += dropout_per_token(widths, arch.attention_output_size)
    return saved


def inputs_per_token(job: Job, arch: Architecture, widths: Widths, slot: str, needing: int) -> float:
    """What a block's adapted layers keep of an input of size h: queries, keys and values are one layer."""
    if slot != "attention_in":
        return dropout_per_token(widths, arch.hidden) * needing
    sizes = {"q_proj": arch.query_size, "k_proj": arch.key_size, "v_proj": arch.value_size}
    adapted = [size for name, size in sizes.items() if job.lora and name in job.lora.targets]
    # zero_pad copies the adapted parts by index, and index_copy saves its source
    padded = widths.compute * sum(adapted) if len(adapted) < len(sizes) else 0
    return dropout_per_token(widths, arch.hidden) + padded


def dropout_per_token(widths: Widths, size: int) -> int:
    """Dropout before an adapter keeps its output and a mask of one byte."""
    return (widths.compute + 1) * size


def norm_scale_width(job: Job, widths: Widths) -> int:
    """Bytes of the normalised input that RMSNorm keeps for its own weight."""
    return 4 if scales_norms_in_fp32(job) else widths.compute


def keeps_previous_graph(job: Job) -> bool:
    """The last micro-batch's graph is alive during the next forward pass, and with it the inputs of 4-bit layers."""
    return job.training.framework == "litgpt" and keeps_quantized_inputs(job) and not runs_longest_first(job)


def head_passes(job: Job) -> int:
    """How often one forward pass runs the head: by chunks under adapters."""
    chunked = job.lora and job.training.framework == "litgpt"
    return -(-job.training.sequence_length // HEAD_CHUNK) if chunked else 1
