"""Bytes per token that one block needs temporarily while it runs, besides what the forward pass saves.

Counted in traced steps of transformers 5's blocks, in autograd's order of operations; the whole is compared with
traces of many families and settings. Other sources stand beside what is read there.
"""

from .attention import relative_bias_per_token, scores_per_token
from .block import AUTOCAST_ACTIVATION_TENSORS, activation_tensors, mlp_per_token
from .layer_context import LayerContext


def mlp_backward_per_token(context: LayerContext) -> float:
    """Bytes of the gradients that are alive while one block's MLP runs backward, or an adapter's recomputed outputs."""
    arch, c, widths = context.arch, context.widths.compute, context.widths
    tensors = 2 if arch.gated else 1
    if arch.gated and "mlp" in context.fused:
        tensors = 2 if context.compiled else 1  # Liger-Kernel writes the factors' gradients over them
    elif arch.activation in AUTOCAST_ACTIVATION_TENSORS:  # a chain of powers and products, in fp32 under autocast
        tensors = 3 * (4 // c if context.widths.mixed else 1)
    gradients: float = tensors * widths.projected * context.widest_mlp
    if context.separate_experts:  # of one expert, and of the tokens of all: the sum so far, and the addend
        gradients += 3 * widths.projected * arch.hidden
    elif arch.moe_layers:
        rows, width = arch.experts_per_token, context.expert_width
        # the experts' outputs are weighted and summed: DeepSeek's weights are fp32
        weighted = (3 * (4 if arch.kv_lora_rank and not context.widths.mixed else width) + c) * arch.hidden
        gradients = max(gradients, rows * weighted, rows * width * (tensors * arch.expert_mlp_size + arch.hidden))
        # of the sums with A B: the larger takes the place of the other's sum; computed again, it is checked besides
        share = 1 / (tensors + 1)
        gradients += (
            (1 - share if context.recomputes else share) * width * context.adapted_expert_elements / context.tokens
        )
    adapters = _adapter_outputs(context, activations_saved=True) if context.recomputes else 0.0
    working = max(gradients, adapters) / context.tensor_parallel + _residual_gradients(context)
    # with four norms per layer, the last one comes first in the backward pass
    return max(working, norm_backward_per_token(context)) if arch.norms_per_layer == 4 else working


_CHAINED_TENSORS = {"autograd": 5, "torch": 4}
"""fp32 tensors of the hidden size that are alive while a norm that is a chain of operations runs backward."""


def norm_backward_per_token(context: LayerContext, *, final: bool = False) -> float:
    """Bytes of the gradients of a norm that runs backward: autograd's chain of fp32 tensors, or one kernel's.

    Args:
        context: the layer.
        final: it is the norm behind the blocks.
    """
    arch = context.arch
    if context.fuses_norm(final=final):  # the input's gradient takes the place of the output's, unless it is compiled
        return (2 if context.compiled else 1) * context.widths.residual * arch.hidden / context.residual_ranks
    tensors = context.framework.norm_backward_tensors
    if context.framework.compiles_blocks:
        tensors = _CHAINED_TENSORS.get(context.rms_norm, tensors)
    tensors = 2 if arch.norm == "layer" else tensors
    return tensors * 4 * arch.hidden / context.residual_ranks


def attention_backward_per_token(context: LayerContext) -> float:
    """Bytes of the gradients while attention runs backward: of written scores, else of queries, keys and values.

    Flash attention's backward kernel accumulates the queries' gradient in fp32, and those of keys and values for all
    heads (``mha_bwd`` in flash-attn's flash_api.cpp).
    """
    arch, c = context.arch, context.widths.compute
    low_precision_softmax = arch.rules.softmax_in_score_dtype or arch.rules.attention_sinks
    plain = context.framework.plain_softmax_families and low_precision_softmax
    scores = scores_per_token(context) * (2 * c if plain and not context.widths.mixed else 4 + c)
    fused: float = 4 * arch.query_size + c * (arch.query_size + 2 * arch.heads * arch.value_head_dim)
    fused /= context.tensor_parallel
    # gradients of T5's biases, with checkpointing those of cross attention too: the sum so far and the addend
    biases = 4 if context.recomputes else 2
    return (
        max(scores, fused)
        + _other_ranks_keys(context)
        + biases * relative_bias_per_token(context)
        + _residual_gradients(context)
    )


_CHAIN_WITHOUT_GRAPH = 4
"""Tensors of transformers' ``gelu_new`` while it runs without a graph: its input, half of it, a power, and its multiple
(``NewGELUActivation`` in activations.py)."""


def forward_per_token(context: LayerContext) -> float:
    """Bytes of one block's forward pass: raw attention scores, or the MLP's product."""
    c, arch = context.widths.compute, context.arch
    tensors = 1
    if context.recomputes:  # tensors that are saved otherwise
        tensors = (2 if arch.gated else 1) + (activation_tensors(context) + 1) // 2
    outputs = _adapter_outputs(context, activations_saved=not context.recomputes)
    mlp = max(tensors * context.widths.projected * context.widest_mlp, outputs) / context.tensor_parallel
    if context.residual_ranks > 1:  # the gathered input, and then the output before it is scattered
        mlp = c * arch.hidden + max(mlp, c * (context.widest_mlp / context.tensor_parallel + arch.hidden))
    return max(2 * c * scores_per_token(context), mlp)


def no_graph_per_token(context: LayerContext) -> float:
    """Bytes of a block that runs without a graph: what it would save otherwise exists while it is read."""
    c, arch, widths = context.widths.compute, context.arch, context.widths
    tensors = (2 if arch.gated else 1) + (activation_tensors(context) + 1) // 2
    if arch.activation in AUTOCAST_ACTIVATION_TENSORS and not context.framework.fused_activations:
        tensors = _CHAIN_WITHOUT_GRAPH
    width = context.expert_width if arch.moe_layers else c
    mlp = tensors * width * context.widest_mlp / context.tensor_parallel
    if arch.moe_layers and not context.separate_experts:
        # the sums with A B, and the larger once more as it is checked (``register_parametrization`` of torch)
        sums = context.adapted_expert_elements * (2 - 1 / (3 if arch.gated else 2)) / context.tokens
        mlp = max(mlp, _experts_without_graph(context)) + width * sums
    heads = c * (2 * arch.query_size + arch.key_size + arch.value_size) / context.tensor_parallel
    scores = scores_per_token(context)
    if scores:  # of all heads; a variable of the block holds the probabilities until it returns
        heads = c * (3 * arch.query_size) / context.tensor_parallel + score_width_without_graph(context) * scores
        mlp += c * scores
    # the half's input, normalised and as it is, the block's, and the first block's, which the model keeps
    inputs = (c + 3 * widths.residual) * arch.hidden + c * context.length * score_masks(context)
    if context.prompts and not scores and arch.sliding_layers and (arch.sliding_window or 0) <= context.length:
        inputs += context.length  # the mask of a window, in bools, of padded prompts (``sdpa_mask`` of transformers 5)
    return max(mlp, heads) + inputs


def score_width_without_graph(context: LayerContext) -> int:
    """Bytes per query and key while eager attention takes the softmax of its scores without a graph.

    Masked scores, and: with sinks these joined to them and the softmax; in the scores' dtype the softmax; otherwise
    an fp32 cast and the fp32 softmax (``eager_attention_forward`` in transformers 5's models; ATen/native/SoftMax.cpp).
    """
    c, rules = context.widths.compute, context.arch.rules
    if rules.attention_sinks:
        return 3 * c
    if rules.softmax_in_score_dtype or c == 4 or not context.eager_attention:
        return 2 * c
    return c + 8


def score_masks(context: LayerContext) -> int:
    """Number of masks of every pair of positions that eager decoders make, one for each kind of layer."""
    arch = context.arch
    if not (context.eager_attention and context.caches and context.framework.trainer):
        return 0
    return 2 if arch.sliding_window and 0 < arch.sliding_layers < arch.layers else 1


def _experts_without_graph(context: LayerContext) -> float:
    """Bytes of fused experts while their outputs are weighted, or their factors multiplied.

    Every token's copies exist until the end; the outputs, weighted, are put back into the tokens' order
    (``grouped_mm_experts_forward`` in transformers 5.23, integrations/moe.py).
    """
    arch, width = context.arch, context.expert_width
    weighted = 4 if arch.rules.fp32_routing else width
    rows = arch.experts_per_token
    factors = width * ((3 if arch.gated else 1) + 1) * arch.expert_mlp_size / context.tensor_parallel
    return rows * (width * arch.hidden + max(factors, (width + 2 * weighted) * arch.hidden))


def _adapter_outputs(context: LayerContext, *, activations_saved: bool) -> float:
    """Bytes of an fp32 adapter of the MLP: its output, that scaled, and the tensor that it is added to; 0 without.

    Args:
        context: the layer.
        activations_saved: what the MLP saves after the adapter exists already, and is subtracted.
    """
    arch, c = context.arch, context.widths.compute
    readers, needing = context.readers.get("mlp_in", (1, 0))
    if context.lora_rank is None or not needing or context.adapter_width == c or context.widths.autocast:
        return 0.0
    fused = 2 if arch.gated and readers == 1 else 1
    passing = 2 * context.adapter_width * arch.hidden  # its input's cast, and a gradient
    outputs = (2 * context.adapter_width + c) * fused * arch.mlp_size + passing
    if not activations_saved:
        return outputs
    # with two projections, the activation of the other one exists
    return outputs - mlp_per_token(context, arch.mlp_size) + (2 * c * arch.mlp_size if readers > 1 else 0)


def _other_ranks_keys(context: LayerContext) -> float:
    """Bytes of other context-parallel ranks' keys and values: of all at once, or of one while the next one's arrive."""
    if context.context_parallel == 1:
        return 0.0
    arch = context.arch
    ranks = context.context_parallel if context.framework.gathers_context else 2
    return ranks * context.widths.compute * (arch.key_size + arch.value_size) / context.tensor_parallel


def _residual_gradients(context: LayerContext) -> float:
    """Bytes of the gradients of the residual stream: of the output of a block half, and of its input."""
    widths, hidden = context.widths, context.arch.hidden
    # sequence parallelism gathers the split residual stream before a block half, and its gradient after it
    gathered = 2 * widths.compute * hidden if context.residual_ranks > 1 else 0
    return 2 * widths.residual * hidden / context.residual_ranks + gathered
