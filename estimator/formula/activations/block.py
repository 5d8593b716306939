"""Bytes per token that one block saves for the backward pass: norms, inputs of linear layers, MLP and experts.

Read from what torch autograd saves for each operation of transformers 5's blocks. Legend: h hidden size, f MLP
size.
"""

from .attention import attention_per_token, relative_bias_per_token
from .layer_context import LayerContext
from .litgpt import litgpt_dropout_per_token, litgpt_linear_input_per_token
from .trained_parts import LinearInput

_ACTIVATION_TENSORS = {"gelu_new": 4, "gelu_fast": 5, "gelu_erf": 3, "quick_gelu": 2, "relu": 0}
"""Tensors of f per token that an activation function saves; the native ones (silu, gelu) save their input."""
AUTOCAST_ACTIVATION_TENSORS = {"gelu_new": 7}
"""Tensors of f per token, in units of two bytes, under CUDA's autocast: it runs ``pow`` and all after it in fp32."""


def attention_half_per_token(context: LayerContext) -> float:
    """Bytes that the attention half of a layer saves, without cross attention and tensors that blocks share."""
    inputs = _linear_input_per_token(context, "attention_in", context.arch.hidden) + relative_bias_per_token(context)
    quantized = sum(quantized_inputs_per_token(context).values())
    return (
        half_of_norms_per_token(context)
        + inputs
        + attention_per_token(context)
        + quantized
        + _adapter_ranks_per_token(context)
    )


def cross_attention_per_token(context: LayerContext) -> float:
    """Bytes that cross attention adds to a decoder block; 0 without."""
    arch = context.arch
    if not arch.encoder_decoder:
        return 0.0
    mask = arch.hidden if arch.hidden_dropout else 0
    inputs = _linear_input_per_token(context, "attention_in", arch.hidden)
    return attention_per_token(context) + norm_per_token(context, arch.hidden) + inputs + mask


def mlp_half_per_token(context: LayerContext, *, moe: bool) -> float:
    """Bytes that the half of a layer after attention saves: its norms, the MLP, and the MLP's input."""
    arch = context.arch
    half = half_of_norms_per_token(context)
    if moe:
        return half + _experts_per_token(context)
    # after a single norm, attention has saved the same input already, unless each layer makes its own cast
    saved = arch.parallel_residual and arch.norms_per_layer == 1 and not context.casts_per_linear
    inputs = _linear_input_per_token(context, "mlp_in", arch.hidden, already_saved=saved)
    return half + mlp_per_token(context, arch.mlp_size) + inputs


def norm_per_token(context: LayerContext, size: float, *, trained: float | None = None, final: bool = False) -> float:
    """Bytes per token that a norm saves, without its output, which the layers that read it save.

    Args:
        context: the layer.
        size: elements that it normalises.
        trained: share of such norms whose scale trains; None: that of the block's norms.
        final: it is the norm behind the blocks.
    """
    widths = context.widths
    if context.arch.norm == "layer":
        fp32_input = widths.mixed and "norm" not in context.fused  # autocast's; Liger's kernel takes what it is given
        return (4 if fp32_input else widths.residual) * size + 8  # input, mean and reciprocal deviation
    if context.rms_norm == "fused" or context.fuses_norm(final=final):
        return widths.residual * size + 4  # input and reciprocal deviation
    scaled = 4 if context.arch.rules.fp32_norm_scale or context.rms_norm == "torch" else widths.residual
    if context.rms_norm == "litgpt":
        scaled = 4 if context.versions.scales_norms_in_fp32 else widths.compute
    # T5's norm multiplies its input in its own dtype, and not the fp32 copy that it takes the variance of
    own = widths.residual * size if context.arch.relative_buckets and widths.residual != 4 else 0
    # the input in fp32 and the reciprocal deviation; for the norm's own weight, the normalised input
    return 4 * size + 4 + own + scaled * size * (context.parts.norms if trained is None else trained)


def quantized_inputs_per_token(context: LayerContext, *, every: bool = False) -> dict[LinearInput, float]:
    """Inputs that frozen layers keep, unless another operation has saved them: 8-bit, older 4-bit and ZeRO 3's layers.

    Args:
        context: the layer.
        every: also those that another operation has saved.
    """
    arch, c, widths = context.arch, context.widths.compute, context.widths
    if not (context.keeps_quantized_inputs or context.keeps_inputs):
        return {}
    eight = context.quantization == "int8"  # which keep the tensor that they read; the others their cast of it
    read, product = (max(c, widths.residual), widths.projected) if eight else (c, c)
    sizes: dict[LinearInput, int] = {"attention_in": read * arch.hidden, "mlp_in": read * arch.hidden}
    sizes["mlp_out"] = product * arch.mlp_size
    if arch.parallel_residual and arch.norms_per_layer == 1:
        del sizes["mlp_in"]  # the same tensor
    if every or context.copies_output or context.framework.fused_qkv or context.eager_attention:
        sizes["attention_out"] = c * arch.attention_output_size  # otherwise the tensor that attention has saved
    # an adapter of the same dtype without dropout before it keeps the tensor itself
    dropped = context.framework.adapter_dropout or context.drops_adapter_input
    adapted = context.adapter_width == c and not dropped and not every
    kept = {name for name, (_, needing) in context.readers.items() if needing and adapted}
    return {name: size / context.tensor_parallel for name, size in sizes.items() if name not in kept}


def mlp_per_token(context: LayerContext, size: int) -> float:
    """Bytes that a dense MLP of that size saves, without the tensor that it reads."""
    arch, c, projected = context.arch, context.widths.compute, context.widths.projected
    saved = activation_tensors(context) + (2 if arch.gated else 0)  # gated: both factors of the product
    if arch.gated and "mlp" in context.fused:
        saved = 2
    elif arch.gated and _runs_powers_in_fp32(context):
        saved += 1  # the activation's output is a factor as wide as autocast left it
    product = product_per_token(context, size)
    if arch.rules.gathers_mlp and context.follows_plan:
        return saved * projected * size + product / context.tensor_parallel
    if arch.relative_buckets and arch.hidden_dropout:  # T5 drops out the input of its second projection
        product += (c + 1) * size
    return (saved * projected * size + product) / context.tensor_parallel


def activation_tensors(context: LayerContext) -> int:
    """Number of tensors of the compute type that the activation function keeps."""
    activation = context.arch.activation
    if context.framework.fused_activations:
        return 1
    if _runs_powers_in_fp32(context):
        return AUTOCAST_ACTIVATION_TENSORS[activation]
    return _ACTIVATION_TENSORS.get(activation, 1)


def _runs_powers_in_fp32(context: LayerContext) -> bool:
    """Return True if autocast widens what an activation function makes of 16-bit projections."""
    widths = context.widths
    return widths.mixed and widths.projected != 4 and context.arch.activation in AUTOCAST_ACTIVATION_TENSORS


def selective_per_token(context: LayerContext) -> float:
    """Bytes that torchtitan's per-op checkpointing keeps: attention's output and every second matrix product.

    These are the queries, the values, the MLP's first projection and its output, which is a whole tensor under tensor
    parallelism too; the results of the two reduce-scatters are kept besides. Experts' grouped products are recomputed.
    """
    arch, c = context.arch, context.widths.compute
    moe = arch.moe_layers / arch.layers
    shared = moe if arch.shared_mlp_size else 0.0
    dense = arch.mlp_size if arch.moe_layers else context.widest_mlp
    products = arch.query_size + arch.value_size + (1 - moe) * dense + shared * arch.shared_mlp_size
    kept = c * (products + arch.attention_output_size) / context.tensor_parallel
    kept += 4 * arch.heads / context.tensor_parallel
    scattered = 2 * c * arch.hidden / context.residual_ranks if context.residual_ranks > 1 else 0
    # the partitioner of compiled blocks drops the MLP's output, which nothing reads in the backward pass
    output = 0 if context.compiled and context.tensor_parallel == 1 else c * arch.hidden * (1 - moe + shared)
    return kept + output + scattered


def half_of_norms_per_token(context: LayerContext) -> float:
    """Bytes of half of a block's norms, and of half of the dropout masks on the outputs of attention and MLP."""
    arch = context.arch
    norms = arch.norms_per_layer * norm_per_token(context, arch.hidden)
    if arch.parallel_residual and arch.norms_per_layer > 1:
        norms -= (arch.norms_per_layer - 1) * context.widths.residual * arch.hidden  # they share one input
    masks = 2 * arch.hidden if arch.hidden_dropout else 0
    return (norms + masks) / 2 / context.residual_ranks


def _adapter_ranks_per_token(context: LayerContext) -> float:
    """Bytes of the tensors between each adapter's two matrices, as wide as the rank."""
    if context.lora_rank is None:
        return 0.0
    adapted = sum(needing for _, needing in context.readers.values())
    return adapted * context.lora_rank * (context.widths.compute if context.widths.autocast else context.adapter_width)


def _linear_input_per_token(
    context: LayerContext, name: LinearInput, size: float, *, already_saved: bool = False
) -> float:
    """Bytes that the linear layers reading one tensor keep of it for their weight gradients."""
    own = context.trains_input(name)
    _, needing = context.readers.get(name, (1, 1 if own else 0))
    widths = context.widths
    if needing and not own and context.framework.adapter_dropout:
        return litgpt_linear_input_per_token(context, name, needing)
    if not needing:
        return 0.0
    if not own and context.drops_adapter_input:
        return context.dropped_input_per_token(size) * needing
    if not own:
        # an adapter casts its input to its own dtype: a copy each, unless they agree, or a compiler shares one
        copies = 1 if context.compiled else needing
        if widths.autocast:
            # peft casts 16-bit inputs to the adapters' type; its layers for bitsandbytes do not
            apart, width = context.quantization is None or widths.residual != widths.compute, widths.compute
        else:
            apart, width = context.own_casts or context.adapter_width != widths.residual, context.adapter_width
        return width * size * (copies if apart else 0 if already_saved else 1)
    if already_saved:
        return 0.0
    if context.casts_per_linear and name in ("attention_in", "mlp_in"):
        return widths.compute * size * needing
    return widths.compute * size / context.input_ranks


def product_per_token(context: LayerContext, size: int) -> float:
    """Bytes of the MLP's product, which its last projection reads."""
    own = context.trains_input("mlp_out")
    needing = context.readers.get("mlp_out", (1, 1 if own else 0))[1]
    if not needing:
        return 0.0
    if not own and context.framework.adapter_dropout:
        return litgpt_dropout_per_token(context.widths, size)
    if not own and context.drops_adapter_input:
        return context.dropped_input_per_token(size)
    return (context.widths.compute if own else context.read_adapter_width) * size


def _experts_per_token(context: LayerContext) -> float:
    arch, c, parts, wide = context.arch, context.widths.compute, context.parts, context.expert_width
    factors = 3 if arch.gated else 1  # two projections in one tensor and the activation's output
    if context.separate_experts:
        return _separate_experts_per_token(context, factors)
    # for the experts' gradient; the replacement of the grouped product outside of bf16 keeps it anyway
    needed = parts.experts or context.adapted_expert_elements > 0 or wide == 4
    tensors = (2 if needed else 1) * arch.hidden + (factors + needed) * arch.expert_mlp_size
    if arch.rules.expert_bias:
        tensors += arch.hidden + arch.expert_mlp_size
    routed = arch.experts_per_token * wide * tensors
    router = 12 * arch.experts + (c * arch.hidden if parts.router else 0)
    shared = _shared_experts_per_token(context)
    sums = wide * context.adapted_expert_elements
    if context.widths.adapter != wide:  # the factors of A B, as they are cast (``_LoraFactorsProxy`` of peft 0.21)
        sums += wide * context.expert_adapter_elements
    return routed / context.tensor_parallel + router + shared + sums / context.tokens


def _separate_experts_per_token(context: LayerContext, factors: int) -> float:
    """Bytes that experts save as linear layers of their own: each keeps its result, plain and weighted.

    Source: transformers 4.48, ``MixtralSparseMoeBlock``; ``index_add_`` saves the tensor that it adds.
    """
    arch, c, parts = context.arch, context.widths.compute, context.parts
    width = context.widths.projected if context.quantization else c
    tensors = width * (2 * arch.hidden + factors * arch.expert_mlp_size)
    indices = 2 * 8
    if parts.experts:  # its tokens, as each layer casts them, and the product
        tensors += c * ((2 if context.widths.autocast else 1) * arch.hidden + arch.expert_mlp_size)
    router = 12 * arch.experts + (c * arch.hidden if parts.router else 0)
    routed = arch.experts_per_token * (tensors + indices)
    return routed / context.tensor_parallel + router + _shared_experts_per_token(context)


def _shared_experts_per_token(context: LayerContext) -> float:
    arch = context.arch
    if not arch.shared_mlp_size:
        return 0.0
    reads = context.lora_rank is not None or context.trains_input("mlp_in")
    read = context.widths.compute * arch.hidden if reads else 0
    return mlp_per_token(context, arch.shared_mlp_size) + read
