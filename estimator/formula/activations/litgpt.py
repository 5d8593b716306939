"""Tensors that LitGPT's own model and its fine-tuning scripts save, where they differ from transformers.

Read from litgpt 0.3 to 0.5 (``model.py``, ``lora.py``, ``finetune/*.py``) and Lightning Fabric (``wrappers.py``,
``plugins/precision``), whose wrapper casts the model's outputs to fp32. The scripts' variables ``logits`` and
``loss`` keep those of the last micro-batch until the next ones replace them. Legend: h hidden size, f MLP size.
"""

from ...job.resolved_job import ResolvedJob
from ...job.rules.dtype_widths import Widths
from .layer_context import LayerContext
from .trained_parts import LinearInput

HEAD_CHUNK = 128
"""Positions per pass of the head under adapters (``lm_head_chunk_size``), and per chunk of the loss."""


def litgpt_attention_per_token(context: LayerContext) -> float:
    """Bytes that attention with a fused kernel saves per token: q, k, v, output, log-sum-exp, and adapters' inputs."""
    arch, c = context.arch, context.widths.compute
    whole = arch.query_size + arch.key_size + arch.value_size
    if arch.kv_heads == arch.heads:  # values stay a view of the product, queries and keys are rotated copies
        size = arch.query_size + arch.key_size + whole
    elif (
        arch.kv_heads == 1 and context.versions.expands_keys
    ):  # expanded in place; rotated keys are a copy for all heads
        size = 2 * arch.query_size + whole
    else:
        size = 3 * arch.query_size
    saved = c * (size + arch.attention_output_size) + 4 * arch.heads
    # the output has the layout of the queries, so that the projection reads a copy of it
    if context.trains_input("attention_out"):
        saved += c * arch.attention_output_size
    elif context.readers.get("attention_out", (1, 0))[1]:
        saved += litgpt_dropout_per_token(context.widths, arch.attention_output_size)
    return saved


def litgpt_linear_input_per_token(context: LayerContext, name: LinearInput, needing: int) -> float:
    """Bytes per token that a block's adapted layers keep of an input of size h: q, k and v are one layer."""
    arch, widths = context.arch, context.widths
    if name != "attention_in":
        return litgpt_dropout_per_token(widths, arch.hidden) * needing
    sizes = {"q_proj": arch.query_size, "k_proj": arch.key_size, "v_proj": arch.value_size}
    adapted = [size for module, size in sizes.items() if module in context.lora_targets]
    # zero_pad copies the adapted parts by index, and index_copy saves its source
    padded = widths.compute * sum(adapted) if len(adapted) < len(sizes) else 0
    return litgpt_dropout_per_token(widths, arch.hidden) + padded


def litgpt_dropout_per_token(widths: Widths, size: int) -> int:
    """Bytes per token that the dropout before an adapter keeps: its output and a mask of one byte."""
    return (widths.compute + 1) * size


def keeps_previous_graph(context: LayerContext) -> bool:
    """Return True if the graph of the last micro-batch is alive during the next forward pass.

    The inputs of 4-bit layers are then alive with it.
    """
    return (
        context.framework.keeps_fp32_logits
        and context.versions.keeps_quantized_inputs
        and not context.versions.runs_longest_first
    )


def head_passes(job: ResolvedJob) -> int:
    """Number of times that one forward pass runs the head: under adapters once per chunk of positions."""
    chunked = job.lora and job.framework.chunked_head
    return -(-job.training.sequence_length // HEAD_CHUNK) if chunked else 1
