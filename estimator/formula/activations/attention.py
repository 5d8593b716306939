"""Bytes per token that attention saves for the backward pass, by the kernel that runs it.

Read from what torch autograd saves for each operation of transformers 5's blocks. Legend: h hidden size, a heads, s
sequence.
"""

from .layer_context import LayerContext
from .litgpt import litgpt_attention_per_token


def attention_per_token(context: LayerContext) -> float:
    """Bytes that one attention saves, including its own norms and the cast for its projection."""
    arch, c, split = context.arch, context.widths.compute, context.tensor_parallel
    core = _kernel_per_token(context) + context.masked_layers * c * context.length
    fused = not (context.framework.fused_qkv or context.eager_attention or context.math_attention)
    if arch.rules.fused_qkv_views and fused and not context.lays_heads_out:
        core += c * (arch.query_size + arch.key_size)
    core += _projection_input_per_token(context)
    if arch.rules.gathers_attention and context.follows_plan:
        return core + _query_norms_per_token(context) + c * arch.attention_output_size / split
    return (core + _query_norms_per_token(context) + _latents_per_token(context)) / split


def scores_per_token(context: LayerContext) -> float:
    """Attention scores per token if they are written to memory; 0 with a fused kernel."""
    if not context.math_attention and not context.eager_attention:
        return 0.0
    return context.arch.heads * context.length / context.tensor_parallel


def relative_bias_per_token(context: LayerContext) -> float:
    """Bytes of the bias that a block of T5 adds to its scores: one per pair of positions, shared by all sequences."""
    if not context.arch.relative_buckets or not context.asks_sdpa:
        return 0.0
    pairs = context.arch.heads * context.length / context.tensor_parallel
    return context.widths.residual * pairs / context.micro_batch


def _kernel_per_token(context: LayerContext) -> float:
    """Bytes that the kernel saves: queries, keys, values, its output, and scores or their log-sum-exp."""
    arch, c = context.arch, context.widths.compute
    grouped = arch.query_size + arch.key_size + arch.value_size
    expanded = arch.query_size + arch.heads * (arch.head_dim + arch.value_head_dim)  # keys and values of all heads
    if context.eager_attention and context.framework.fused_eager_softmax:
        # Megatron's fused softmax keeps c-byte probabilities; dropout keeps them again, and a mask
        return c * grouped + arch.heads * context.length * (c + ((c + 1) if arch.attention_dropout else 0))
    if context.framework.fused_qkv and not context.eager_attention:
        return litgpt_attention_per_token(context)
    if context.math_attention:  # in fp32; dropout keeps a mask and its result
        scores = 4 + (5 if arch.attention_dropout else 0)
        return 4 * expanded + c * arch.attention_output_size + scores * arch.heads * context.length
    if context.eager_attention:
        return c * expanded + _eager_scores_per_token(context)
    if context.repeats_keys:
        grouped = expanded
    # the kernel for fp32 lays its output out as needed
    copied = context.copies_output and context.trains_input("attention_out") and c != 4
    copied = copied or context.copies_flash_output
    output = 4 * arch.heads + c * arch.attention_output_size * (2 if copied else 1)
    return c * grouped + output + context.masked_layers * c * (expanded - grouped)


def _eager_scores_per_token(context: LayerContext) -> float:
    """Bytes of all that eager attention saves per pair of positions: softmax, dropout, cap and casts."""
    arch, widths, c = context.arch, context.widths, context.widths.compute
    softmax = c if arch.rules.softmax_in_score_dtype and not widths.mixed else 4
    # dropout keeps a mask and the product's factor; otherwise that factor is the probabilities, or their cast
    kept = 1 + c if arch.attention_dropout else (c if c != softmax else 0)
    tanh = c if arch.attention_softcap else 0
    if arch.rules.attention_sinks:  # the softmax covers scores and sinks; the scores' part is multiplied
        # the sinks are parameters, which autocast does not cast: fp32 ones make the scores fp32 too
        softmax, kept = (4, c) if widths.autocast and widths.weight > c else (c, 0)
    softmax_input = (4 if widths.mixed else c) if context.versions.saves_softmax_inputs else 0
    return arch.heads * context.length * (softmax + kept + tanh + softmax_input)


def _projection_input_per_token(context: LayerContext) -> float:
    """Bytes that the output projection's input adds, if the kernel has not saved it in the same dtype."""
    needing = context.readers.get("attention_out", (1, 1))[1]
    own = context.trains_input("attention_out")
    if context.drops_adapter_input and needing and not own and not context.framework.fused_qkv:
        return context.dropped_input_per_token(context.arch.attention_output_size)
    if context.eager_attention and (needing or own):
        return context.widths.compute * context.arch.attention_output_size
    width = context.adapter_width
    if (
        not needing
        or context.trains_input("attention_out")
        or (width == context.widths.compute and not context.own_casts)
        or context.framework.fused_qkv
        or (context.quantization and context.widths.autocast)  # peft's layers for bitsandbytes leave the cast to it
    ):
        return 0.0
    # the adapter's own cast; autocast casts that back, and it is the copy cast back that is saved
    return (context.widths.compute if context.widths.autocast else width) * context.arch.attention_output_size


def _query_norms_per_token(context: LayerContext) -> float:
    arch, c = context.arch, context.widths.compute
    if arch.qk_norm == "none":
        return 0.0
    size, heads = arch.query_size + arch.key_size, arch.heads + arch.kv_heads
    if context.compiled:
        return c * size + 4 * heads
    scaled = 4 if arch.rules.fp32_norm_scale else c
    return 4 * size + 4 * heads + (scaled * size if context.parts.query_norms else 0)


def _latents_per_token(context: LayerContext) -> float:
    """Bytes of DeepSeek's compressed queries, keys and values: their norms, and the expanding layers' inputs."""
    arch, c = context.arch, context.widths.compute
    ranks = (arch.q_lora_rank or 0) + (arch.kv_lora_rank or 0)
    return ranks * (4 + (2 * c if context.parts.latents else 0))
