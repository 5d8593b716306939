"""Bytes per token that one block needs for a moment while it runs, besides what the forward pass saves."""

from .attention import PLAIN_SOFTMAX, relative_bias_per_token, scores_per_token
from .block import AUTOCAST_EXTRA, activation_tensors, mlp_per_token
from .layer_context import LayerContext


def mlp_backward_per_token(context: LayerContext) -> float:
    """Gradients that are alive while one block's MLP runs backward, or what an adapter of it gives meanwhile."""
    arch, c = context.arch, context.widths.compute
    tensors = 2 if arch.gated else 1
    if arch.activation in AUTOCAST_EXTRA:  # a chain of powers and products, in fp32 under autocast
        tensors = 3 * (4 // c if context.widths.mixed else 1)
    gradients = tensors * c * context.widest_mlp
    if arch.moe_layers:
        rows, width = arch.experts_per_token, context.expert_width
        # their outputs are weighed and summed: DeepSeek's weights are fp32
        weighed = (3 * (4 if arch.kv_lora_rank and not context.widths.mixed else width) + c) * arch.hidden
        gradients = max(gradients, rows * weighed, rows * width * (tensors * arch.expert_mlp_size + arch.hidden))
    adapters = _adapter_outputs(context, saved_behind=True) if context.recomputes else 0.0
    working = max(gradients, adapters) / context.tensor_parallel + _residual_gradients(context)
    return (
        max(working, norm_backward_per_token(context)) if arch.norms_per_layer == 4 else working
    )  # the last comes first


def norm_backward_per_token(context: LayerContext) -> float:
    """A norm running backward: autograd's chain of fp32 gradients, or torch's one kernel for layer norms."""
    arch, fused = context.arch, context.job.training.framework != "transformers"
    tensors = 2 if arch.norm == "layer" or fused else 5
    return tensors * 4 * arch.hidden / context.residual_ranks


def _adapter_outputs(context: LayerContext, *, saved_behind: bool) -> float:
    """What an adapter in fp32 of the MLP gives, it scaled, and what it is added to; 0 where there is none.

    Args:
        context: the layer.
        saved_behind: what the MLP saves behind it counts as there already, and is taken off.
    """
    arch, c = context.arch, context.widths.compute
    readers, needing = context.readers.get("mlp_in", (1, 0))
    if context.trains_weights or not needing or context.adapter_width == c or context.widths.autocast:
        return 0.0
    fused = 2 if arch.gated and readers == 1 else 1
    passing = 2 * context.adapter_width * arch.hidden  # its input's cast, and a gradient
    outputs = (2 * context.adapter_width + c) * fused * arch.mlp_size + passing
    if not saved_behind:
        return outputs
    # of two projections, the activation of the other is there
    return outputs - mlp_per_token(context, arch.mlp_size) + (2 * c * arch.mlp_size if readers > 1 else 0)


def attention_backward_per_token(context: LayerContext) -> float:
    """The same for its attention: of the scores, where these are written, else of queries, keys and values."""
    arch, c = context.arch, context.widths.compute
    plain = context.job.training.framework == "transformers" and arch.family in {*PLAIN_SOFTMAX, "gpt_oss"}
    scores = scores_per_token(context) * (2 * c if plain and not context.widths.mixed else 4 + c)
    fused = (
        4 * arch.query_size + c * (arch.query_size + 2 * arch.heads * arch.value_head_dim)
    ) / context.tensor_parallel
    # gradients of T5's biases, with checkpointing those of cross attention too: what came before and what is added
    biases = 4 if context.recomputes else 2
    ring = 0.0
    if context.job.parallel.context > 1:
        # keys and values of the other ranks: all of them at once, or of one rank while the next one's come
        ranks = context.job.parallel.context if context.job.training.framework == "torchtitan" else 2
        ring = ranks * c * (arch.key_size + arch.value_size) / context.tensor_parallel
    return max(scores, fused) + ring + biases * relative_bias_per_token(context) + _residual_gradients(context)


def _residual_gradients(context: LayerContext) -> float:
    """The residual stream's gradient, of a block half's output and of its input."""
    widths, hidden = context.widths, context.arch.hidden
    # sequence parallelism gathers the split residual stream before a block half, and its gradient after it
    gathered = 2 * widths.compute * hidden if context.residual_ranks > 1 else 0
    return 2 * widths.residual * hidden / context.residual_ranks + gathered


def forward_per_token(context: LayerContext) -> float:
    """What one block's forward pass holds for a moment: raw attention scores, or the MLP's product."""
    c, arch = context.widths.compute, context.arch
    tensors = 1
    if context.recomputes:  # what is saved otherwise
        tensors = (2 if arch.gated else 1) + (activation_tensors(context) + 1) // 2
    mlp = max(tensors * c * context.widest_mlp, _adapter_outputs(context, saved_behind=not context.recomputes))
    mlp /= context.tensor_parallel
    if context.residual_ranks > 1:  # the gathered input, and then the output before it is scattered
        mlp = c * arch.hidden + max(mlp, c * (context.widest_mlp / context.tensor_parallel + arch.hidden))
    return max(2 * c * scores_per_token(context), mlp)
