"""Bytes per token that one block saves for the backward pass: norms, what linear layers read, MLP and experts.

Read off what torch autograd saves for each operation of transformers 5's blocks. Legend: h hidden size, f MLP size.
"""

from ...job.version_rules import keeps_quantized_inputs
from . import litgpt
from .attention import COPIED_OUTPUT, WIDE_SCALE, attention_per_token, relative_bias_per_token, uses_eager_attention
from .layer_context import LayerContext, tokens_per_rank
from .linear_inputs import LinearInput

_ACTIVATION_EXTRA = {"gelu_new": 4, "gelu_fast": 5, "quick_gelu": 2, "relu": 0}
"""Tensors of f per token that an activation function saves; the native ones (silu, gelu) save their input."""
AUTOCAST_EXTRA = {"gelu_new": 7}
"""The same in units of two bytes under CUDA's autocast, which runs ``pow`` and all that follows it in fp32."""
_GATHERED_MLP = frozenset({"phi3"})
"""Families whose plan for tensor parallelism gathers what the projections give, and splits it again behind."""


def attention_half_per_token(context: LayerContext) -> float:
    """What the attention half of a layer saves, without cross attention and without tensors that blocks share."""
    arch = context.arch
    attention = attention_per_token(context)
    half = (_block_norms_per_token(context) + _dropout_masks_per_token(context)) / 2 / context.residual_ranks
    reads = _linear_input_per_token(context, "attention_in", arch.hidden) + relative_bias_per_token(context)
    kept = sum(quantized_inputs_per_token(context).values())
    return half + reads + attention + kept + _adapter_ranks_per_token(context)


def cross_attention_per_token(context: LayerContext) -> float:
    """What a decoder block with cross attention saves for that; 0 without."""
    arch = context.arch
    if not arch.encoder_decoder:
        return 0.0
    mask = arch.hidden if arch.hidden_dropout else 0
    reads = _linear_input_per_token(context, "attention_in", arch.hidden)
    return attention_per_token(context) + norm_per_token(context, arch.hidden) + reads + mask


def mlp_half_per_token(context: LayerContext, *, moe: bool) -> float:
    """Of a layer the half after attention: its norms, the MLP, and what that reads."""
    arch = context.arch
    half = (_block_norms_per_token(context) + _dropout_masks_per_token(context)) / 2 / context.residual_ranks
    if moe:
        return half + _experts_per_token(context)
    shared = arch.parallel_residual and arch.norms_per_layer == 1
    return (
        half
        + mlp_per_token(context, arch.mlp_size)
        + _linear_input_per_token(context, "mlp_in", arch.hidden, shared=shared)
    )


def _block_norms_per_token(context: LayerContext) -> float:
    arch = context.arch
    norms = arch.norms_per_layer * norm_per_token(context, arch.hidden)
    if arch.parallel_residual and arch.norms_per_layer > 1:
        norms -= (arch.norms_per_layer - 1) * context.widths.residual * arch.hidden  # they read one and the same input
    return norms


def norm_per_token(context: LayerContext, size: float) -> float:
    """A norm's saved tensors per token, its output excepted (whoever reads it saves it)."""
    widths, arch = context.widths, context.arch
    if arch.norm == "layer":
        return (4 if widths.mixed else widths.residual) * size + 8  # input, mean and reciprocal deviation
    if context.job.training.framework in ("torchtitan", "megatron"):
        return widths.residual * size + 4  # fused: input and reciprocal deviation
    scaled = 4 if arch.family.startswith(WIDE_SCALE) else widths.residual
    if context.job.training.framework == "litgpt":
        scaled = litgpt.norm_scale_width(context.job, widths)
    # T5's norm multiplies its input as it came, and not the copy in fp32 that it takes the variance of
    given = widths.residual * size if arch.relative_buckets and widths.residual != 4 else 0
    # the input in fp32 and the reciprocal deviation; for the norm's own weight, the normalised input
    return 4 * size + 4 + given + (scaled * size if context.trains_weights else 0)


def _dropout_masks_per_token(context: LayerContext) -> float:
    """Of dropout on the outputs of attention and MLP."""
    return 2 * context.arch.hidden if context.arch.hidden_dropout else 0


def _adapter_ranks_per_token(context: LayerContext) -> float:
    """What lies between an adapter's two matrices: rank-sized."""
    lora, widths = context.job.lora, context.widths
    if lora is None:
        return 0.0
    adapted = sum(needing for _, needing in context.readers.values())
    return adapted * lora.rank * (widths.compute if widths.autocast else context.adapter_width)


def _linear_input_per_token(context: LayerContext, slot: LinearInput, size: float, *, shared: bool = False) -> float:
    """What the linear layers that read one tensor keep of it for their weight gradients, per token."""
    readers, needing = context.readers.get(slot, (1, 1 if context.trains_weights else 0))
    widths = context.widths
    if needing and not context.trains_weights and context.job.training.framework == "litgpt":
        return litgpt.inputs_per_token(context.job, context.arch, widths, slot, needing)
    if not needing or (shared and not context.casts_per_linear):
        return 0.0
    if not context.trains_weights:
        # an adapter casts its input to its own type: a copy each, unless they already agree
        if widths.autocast:
            return widths.compute * size * needing
        return context.adapter_width * size * (needing if context.adapter_width != widths.residual else 1)
    if context.casts_per_linear and slot in ("attention_in", "mlp_in"):
        return widths.compute * size * readers  # autocast casts the fp32 input anew for each reader
    return widths.compute * size


def quantized_inputs_per_token(context: LayerContext) -> dict[LinearInput, float]:
    """Inputs that 4-bit layers keep, by older versions of bitsandbytes, where nothing else has kept them."""
    arch, c = context.arch, context.widths.compute
    if not keeps_quantized_inputs(context.job):
        return {}
    sizes = {"attention_in": arch.hidden, "mlp_in": arch.hidden, "mlp_out": arch.mlp_size}
    if arch.parallel_residual and arch.norms_per_layer == 1:
        del sizes["mlp_in"]  # the same tensor
    eager = uses_eager_attention(context.job, arch)
    if context.job.training.framework == "litgpt" or eager or arch.family in COPIED_OUTPUT:
        sizes["attention_out"] = arch.attention_output_size  # else it is the tensor that attention has saved
    # an adapter of the same type without dropout before it keeps the tensor itself
    adapted = context.adapter_width == c and context.job.training.framework != "litgpt"
    kept = {slot for slot, (_, needing) in context.readers.items() if needing and adapted}
    return {slot: c * size / context.tensor_parallel for slot, size in sizes.items() if slot not in kept}


def mlp_per_token(context: LayerContext, size: int) -> float:
    """What a dense MLP of that size saves, the tensor that it reads excepted."""
    arch, c = context.arch, context.widths.compute
    saved = activation_tensors(context) + (2 if arch.gated else 0)  # gated: both factors of the product
    needing = context.readers.get("mlp_out", (1, 1 if context.trains_weights else 0))[1]
    product: float = c * size if needing else 0
    if arch.gated and context.widths.mixed and arch.activation in AUTOCAST_EXTRA:
        saved += 1  # the activation's output is a factor as wide as autocast left it
    if needing and not context.trains_weights and not context.widths.autocast:
        product = context.adapter_width * size
        if context.job.training.framework == "litgpt":
            product = litgpt.dropout_per_token(context.widths, size)
    if context.gathers(_GATHERED_MLP):
        return saved * c * size + product / context.tensor_parallel
    if arch.relative_buckets and arch.hidden_dropout:  # T5 drops out what its second projection reads
        product += (c + 1) * size
    return (saved * c * size + product) / context.tensor_parallel


def activation_tensors(context: LayerContext) -> int:
    """How many tensors of the compute type an activation function keeps."""
    activation = context.arch.activation
    if context.job.training.framework in ("litgpt", "megatron"):
        return 1  # torch's own, or a fused one
    if context.widths.mixed and activation in AUTOCAST_EXTRA:
        return AUTOCAST_EXTRA[activation]
    return _ACTIVATION_EXTRA.get(activation, 1)


def _experts_per_token(context: LayerContext) -> float:
    arch, c, full, wide = context.arch, context.widths.compute, context.trains_weights, context.expert_width
    factors = 3 if arch.gated else 1  # two projections in one tensor and the activation's output
    # for the experts' gradient; what takes the place of the grouped product outside of bf16 keeps it anyway
    needed = full or context.adapted_expert_elements > 0 or wide == 4
    tensors = (2 if needed else 1) * arch.hidden + (factors + needed) * arch.expert_mlp_size
    if arch.family == "gpt_oss":  # its experts have biases, and clamp what they multiply
        tensors += arch.hidden + arch.expert_mlp_size
    routed = arch.experts_per_token * wide * tensors
    router = 12 * arch.experts + (c * arch.hidden if full else 0)
    shared = mlp_per_token(context, arch.shared_mlp_size) + c * arch.hidden if arch.shared_mlp_size else 0
    sums = wide * context.adapted_expert_elements / tokens_per_rank(context.job)
    return routed / context.tensor_parallel + router + shared + sums


def selective_per_token(context: LayerContext) -> float:
    """The per-op choice of torchtitan: attention's output, and of the matrix products every second one.

    These are the queries, the values, the MLP's first projection and its output, which is a whole tensor under tensor
    parallelism too; what the two reduce-scatters then make of it is kept besides.
    """
    arch, c = context.arch, context.widths.compute
    products = arch.query_size + arch.value_size + context.widest_mlp
    kept = (
        c * (products + arch.attention_output_size) / context.tensor_parallel + 4 * arch.heads / context.tensor_parallel
    )
    scattered = 2 * c * arch.hidden / context.residual_ranks if context.residual_ranks > 1 else 0
    return kept + c * arch.hidden + scattered
