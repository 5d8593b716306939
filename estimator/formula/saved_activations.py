"""Bytes that the forward pass of one pipeline stage saves for the backward pass, in its blocks and outside of them.

The formulas per block are in ``block``, ``attention`` and ``temporary_memory``; tests compare them with what autograd
saves on real models. All figures are for the tokens of one micro-batch.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from ..common.records import replace
from ..job.resolved_job import ResolvedJob
from ..model.architecture import Architecture, Role
from ..model.rank_share import Stage, unpacked_bytes
from .layer_context import (
    LayerContext,
    LinearInput,
    keeps_previous_graph,
    layer_context,
    litgpt_attention_per_token,
    litgpt_dropout_per_token,
    litgpt_linear_input_per_token,
    run_context,
)

# Bytes per token that attention saves for the backward pass, by the kernel that runs it.
#
# Read from what torch autograd saves for each operation of transformers 5's blocks. Legend: h hidden size, a heads, s
# sequence.


def attention_per_token(context: LayerContext) -> float:
    """Bytes that one attention saves, including its own norms and the cast for its projection."""
    arch, c, split = context.arch, context.widths.compute, context.tensor_parallel
    core = _kernel_per_token(context) + context.masked_layers * c * context.length
    fused = not (context.framework.fused_qkv or context.eager_attention or context.math_attention)
    if arch.rules.fused_qkv_views and fused:
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
    if context.math_attention:
        return c * (expanded + arch.attention_output_size) + 4 * arch.heads * context.length
    if context.eager_attention:
        return c * expanded + _eager_scores_per_token(context)
    if context.repeats_keys:
        grouped = expanded
    # the kernel for fp32 lays its output out as needed
    copied = arch.rules.copies_attention_output and context.trains_input("attention_out") and c != 4
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
        softmax, kept = (4, c) if widths.autocast else (c, 0)  # the sinks are parameters, which autocast does not cast
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


# Bytes per token that one block saves for the backward pass: norms, inputs of linear layers, MLP and experts.
#
# Read from what torch autograd saves for each operation of transformers 5's blocks. Legend: h hidden size, f MLP
# size.


_ACTIVATION_TENSORS = {"gelu_new": 4, "gelu_fast": 5, "quick_gelu": 2, "relu": 0}
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
    if every or context.framework.fused_qkv or context.eager_attention or arch.rules.copies_attention_output:
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
    if not needing or already_saved:
        return 0.0
    if not own and context.drops_adapter_input:
        return context.dropped_input_per_token(size) * needing
    if not own:
        # an adapter casts its input to its own dtype: a copy each, unless they agree, or a compiler shares one
        copies = 1 if context.compiled else needing
        if widths.autocast:
            apart = context.casts_adapter_inputs or widths.residual != widths.compute
            return widths.compute * size * (copies if apart else 1)
        apart = context.own_casts or context.adapter_width != widths.residual
        return context.adapter_width * size * (copies if apart else 1)
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
    sums = wide * context.adapted_expert_elements / context.tokens
    return routed / context.tensor_parallel + router + shared + sums


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


# Blocks of a stage of which some parameters are frozen: what each saves, in the order in which they run.
#
# Nothing before the first parameter that trains has a graph, so those blocks save nothing. The first block in the
# graph saves nothing before its first trained part. All blocks after it pass gradients on, whatever trains in them.


class BlockSpan(Struct, frozen=True, kw_only=True):
    """Successive blocks that save the same."""

    count: int
    context: LayerContext
    in_graph: bool
    unsaved: float
    """Bytes per token that the block does not save, of what its parts need saved where gradients pass through it."""
    trained_elements: float
    """Trained elements of one block."""


class BackwardOrder(Struct, frozen=True, kw_only=True):
    """The blocks that run backward, from the first to the last: bytes that each saves, and its trained elements."""

    spans: tuple[tuple[int, float, float], ...]
    """Blocks, bytes saved by each, trained elements of each."""

    @property
    def blocks(self) -> int:
        """Number of blocks that run backward."""
        return sum(count for count, _, _ in self.spans)

    @property
    def ends(self) -> set[int]:
        """Numbers of blocks that have run backward where a span of like blocks begins or ends."""
        found, done = set(), 0
        for count, _, _ in reversed(self.spans):
            found |= {done, done + count - 1}
            done += count
        return found

    def saved_bytes(self, done: float) -> int:
        """Return the bytes that are still saved when that many blocks, the last ones first, have run backward."""
        return round(sum(count * saved for count, saved, _ in self._left(done)))

    def trained_elements(self, done: float) -> float:
        """Return the trained elements of the blocks that have run backward."""
        whole = sum(count * elements for count, _, elements in self.spans)
        return whole - sum(count * elements for count, _, elements in self._left(done))

    def _left(self, done: float) -> Iterator[tuple[float, float, float]]:
        left = self.blocks - done
        for count, saved, elements in self.spans:
            yield max(0.0, min(count, left)), saved, elements
            left -= count


def with_flat_units(job: ResolvedJob, stage: Stage) -> tuple[Stage, bool]:
    """Return the stage as autograd sees it under FSDP1, and whether the embedding's output needs a gradient.

    A unit's parameters are views of one flat parameter, which needs a gradient if any of them trains: then all of them
    save what theirs would need (``_use_unsharded_views`` in torch 2.13 ``distributed/fsdp/_flat_param.py``). The
    embedding is in the root's unit, with norm and head, unless the policy wraps it. Adapters are units of their own.
    """
    if not job.flattens or job.lora is not None or stage.runs is None:
        return stage, False
    parallel, one_unit = job.parallel, job.parallel.fsdp_units == "model"
    layered = frozenset(held.group.name for held in stage.parameters if held.group.layered)
    runs = [replace(run, trained=layered if run.trained or one_unit else run.trained) for run in stage.runs]
    own = parallel.fsdp_min_unit_parameters is not None or any(
        "embed" in name.lower() for name in parallel.fsdp_wrap_classes or ()
    )
    outside = any(held.trainable and not held.group.layered for held in stage.parameters)
    return replace(stage, runs=tuple(runs)), one_unit or (outside and not own)


def block_spans(context: LayerContext, stage: Stage, *, gradient_enters: bool) -> Iterator[BlockSpan]:
    """Yield the spans of a stage's blocks.

    Args:
        context: of all blocks.
        stage: the stage; with runs of blocks in which different parameters train.
        gradient_enters: the first block's input needs a gradient.
    """
    runs, flows = stage.runs or (), gradient_enters
    adapters = sum(h.elements for h in stage.parameters if h.adapter and h.group.layered) / max(1, stage.layers)
    for run in runs:
        own, trained, count = run_context(context, stage, run), adapters, run.count
        for held in stage.parameters:
            if held.trainable and not held.adapter and held.group.layered and held.group.name in run.trained:
                trained += held.elements / sum(each.count for each in runs if held.group.name in each.trained)
        if not flows and not trained:
            yield BlockSpan(count=count, context=own, in_graph=False, unsaved=0.0, trained_elements=0.0)
            continue
        if not flows:
            yield BlockSpan(
                count=1, context=own, in_graph=True, unsaved=_unsaved_in_first(own), trained_elements=trained
            )
            count, flows = count - 1, True
        if count:
            yield BlockSpan(count=count, context=own, in_graph=True, unsaved=0.0, trained_elements=trained)


def _unsaved_in_first(context: LayerContext) -> float:
    """Return the bytes per token that a block does not save because no gradient reaches its input."""
    arch, parts = context.arch, context.parts
    if context.lora_rank is not None:  # adapters train in every block, from its first linear layer on
        return norm_per_token(context, arch.hidden, trained=0.0)
    moe = not arch.dense_layers
    norm = _unsaved_norm(context, trained=parts.first_norm)
    if parts.attention:
        return norm + (_unsaved_mlp(context, moe) if arch.parallel_residual else 0.0)
    attention = (
        attention_half_per_token(context) + half_of_norms_per_token(context) - norm_per_token(context, arch.hidden)
    )
    return attention + _unsaved_mlp(context, moe)


def _unsaved_mlp(context: LayerContext, moe: bool) -> float:
    """Return the bytes that the MLP half does not save if no gradient reaches its input."""
    if not context.parts.mlp:
        return mlp_half_per_token(context, moe=moe)
    own = 0.0 if context.arch.parallel_residual else _unsaved_norm(context, trained=context.parts.norms > 0)
    if moe or context.trains_input("mlp_in") or context.parts.norms or not context.trains_input("mlp_out"):
        return own
    return own + mlp_per_token(context, context.arch.mlp_size) - product_per_token(context, context.arch.mlp_size)


def _unsaved_norm(context: LayerContext, *, trained: bool) -> float:
    """Return the bytes that a norm does not save whose input needs no gradient: all but an RMS norm's output."""
    if trained and context.arch.norm == "layer":
        return 0.0
    return norm_per_token(context, context.arch.hidden, trained=0.0)


# Bytes per token that one block needs temporarily while it runs, besides what the forward pass saves.
#
# Counted in traced steps of transformers 5's blocks, in autograd's order of operations; the whole is compared with
# traces of many families and settings. Other sources stand beside what is read there.


def mlp_backward_per_token(context: LayerContext) -> float:
    """Bytes of the gradients that are alive while one block's MLP runs backward, or an adapter's recomputed outputs."""
    arch, c, widths = context.arch, context.widths.compute, context.widths
    tensors = 2 if arch.gated else 1
    if arch.gated and "mlp" in context.fused:
        tensors = 2 if context.compiled else 1  # Liger-Kernel writes the factors' gradients over them
    elif arch.activation in AUTOCAST_ACTIVATION_TENSORS:  # a chain of powers and products, in fp32 under autocast
        tensors = 3 * (4 // c if context.widths.mixed else 1)
    gradients = tensors * widths.projected * context.widest_mlp
    if context.separate_experts:  # of one expert, and of the tokens of all: the sum so far, and the addend
        gradients += 3 * widths.projected * arch.hidden
    elif arch.moe_layers:
        rows, width = arch.experts_per_token, context.expert_width
        # the experts' outputs are weighted and summed: DeepSeek's weights are fp32
        weighted = (3 * (4 if arch.kv_lora_rank and not context.widths.mixed else width) + c) * arch.hidden
        gradients = max(gradients, rows * weighted, rows * width * (tensors * arch.expert_mlp_size + arch.hidden))
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
        mlp = max(mlp, _experts_without_graph(context))
    heads = c * (2 * arch.query_size + arch.key_size + arch.value_size) / context.tensor_parallel
    scores = scores_per_token(context)
    if scores:  # of all heads; a variable of the block holds the probabilities until it returns
        heads = c * (3 * arch.query_size) / context.tensor_parallel + score_width_without_graph(context) * scores
        mlp += c * scores
    # the half's input, normalised and as it is, the block's, and the first block's, which the model keeps
    inputs = (c + 3 * widths.residual) * arch.hidden + c * context.length * score_masks(context)
    return max(mlp, heads) + inputs


def score_width_without_graph(context: LayerContext) -> int:
    """Bytes per pair of positions while attention that writes its scores takes their softmax without a graph.

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


class SavedActivations(Struct, frozen=True, kw_only=True):
    """Activations of one micro-batch on one stage, and the temporary memory of its blocks."""

    layer_bytes: int
    """One layer without checkpointing; the larger kind of layer if they differ."""
    all_layers_bytes: int
    """All layers of the stage, as checkpointing leaves them."""
    outside_blocks_bytes: int
    """Embedding, final norm and head, without logits and loss."""
    recomputed_bytes: int
    """Tensors removed by checkpointing or offloading that one layer's backward pass restores first."""
    mlp_half_bytes: int
    """The part of one layer that is freed once its MLP half has run backward."""
    mlp_backward_bytes: int
    """Temporary memory of one layer's MLP while it runs backward."""
    attention_backward_bytes: int
    """Temporary memory of one layer's attention while it runs backward."""
    norm_backward_bytes: int
    """Temporary memory of a norm while it runs backward."""
    forward_temporary_bytes: int
    """Temporary memory of one layer's forward pass."""
    boundary_bytes: int
    """The residual stream between two blocks."""
    previous_graph_bytes: int = 0
    """Tensors that the graph of the previous micro-batch still holds during the forward pass."""
    order: BackwardOrder | None = None
    """The blocks that run backward, where they differ; None: all do, and are alike."""
    unfused_bytes: int = 0
    """Additional bytes that the blocks save if fused kernels are assumed and do not exist."""
    no_graph_bytes: int = 0
    """Temporary memory of a block that saves nothing, as nothing before it or in it trains; 0: there is none."""


class _LayerBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per token that a layer saves, over the kinds of layers that an architecture has."""

    mean: float
    largest: float
    mlp_half: float
    """The MLP half of an MoE layer if there is one, else of a dense layer."""


def saved_activations(job: ResolvedJob, arch: Architecture, stage: Stage) -> SavedActivations:
    """Return what the forward pass of one micro-batch saves on a stage."""
    context = layer_context(job, arch, stage)
    if stage.runs is not None:
        return _with_frozen_parts(job, context, stage)
    tokens = context.tokens
    layer, shared = _layer_bytes(context), _shared_biases_per_token(context)
    boundary = job.widths.residual * arch.hidden / context.residual_ranks
    offload = job.training.activation_offload
    kept = shared + (_checkpoint_per_token(job, context) if job.recomputes else layer.mean)
    if job.recomputes_selectively:
        kept += selective_per_token(context)
    recomputed, half = layer.largest + shared - kept if job.recomputes else 0.0, layer.mlp_half
    if job.checkpoints_parts:  # one half is recomputed at a time
        attention = layer.largest - layer.mlp_half - kept / 2
        recomputed = max(attention, layer.mlp_half - kept / 2)
        half = kept / 2 + recomputed - attention
    if offload:
        recomputed += 2 * kept  # one layer on its way out or in, one in use
    unpacked = unpacked_bytes(stage.quantized_layers, width=context.framework.unpacked_width)
    all_layers = kept * stage.layers - _not_saved_before_adapters(context, stage)
    return SavedActivations(
        layer_bytes=round(layer.largest * tokens),
        all_layers_bytes=0 if offload else round(all_layers * tokens),
        outside_blocks_bytes=round(_outside_blocks_per_token(context, stage) * tokens),
        recomputed_bytes=round(recomputed * tokens),
        mlp_half_bytes=round(half * tokens) if context.framework.frees_mlp_first else 0,
        mlp_backward_bytes=round(mlp_backward_per_token(context) * tokens) + unpacked,
        attention_backward_bytes=round(attention_backward_per_token(context) * tokens) + unpacked,
        norm_backward_bytes=round(norm_backward_per_token(context, final=True) * tokens),
        forward_temporary_bytes=round(forward_per_token(context) * tokens) + unpacked,
        boundary_bytes=round(boundary * tokens),
        previous_graph_bytes=round(_previous_graph_per_token(context, stage) * tokens),
        unfused_bytes=_unfused_bytes(job, context, stage, layer.largest),
    )


def _checkpoint_per_token(job: ResolvedJob, context: LayerContext) -> float:
    """Bytes per token that a checkpointed block keeps: its input, or those of both norms and what reads them."""
    boundary = job.widths.residual * context.arch.hidden / context.residual_ranks
    if context.quantization == "int8" and job.versions.checkpoints_with_gradient and not job.recomputes_selectively:
        # what MatMul8bitLt's context holds is no saved tensor, which non-reentrant checkpointing would drop
        boundary += sum(quantized_inputs_per_token(context, every=True).values())
    if not job.checkpoints_parts:
        return boundary
    return 2 * (boundary + job.widths.compute * context.arch.hidden / context.residual_ranks)


def _unfused_bytes(job: ResolvedJob, context: LayerContext, stage: Stage, largest: float) -> int:
    """Return the bytes that a stage saves more without fused kernels that are assumed: of one layer if recomputed."""
    if not job.assumes_fused_kernels or not context.fused or context.compiled:
        return 0
    more = _layer_bytes(replace(context, fused=frozenset())).largest - largest
    layers = 1 if job.recomputes or job.training.activation_offload else stage.layers
    return round(more * layers * context.tokens)


def _with_frozen_parts(job: ResolvedJob, context: LayerContext, stage: Stage) -> SavedActivations:
    """Return the same where parts of the blocks are frozen."""
    arch, tokens, offload = context.arch, context.tokens, job.training.activation_offload
    shared = _shared_biases_per_token(context)
    every = saved_activations(job, arch, replace(stage, runs=None))
    stage, in_root = with_flat_units(job, stage)
    enters = in_root or _gradient_enters(job, stage)
    spans = tuple(block_spans(context, stage, gradient_enters=enters))
    order, layer, recomputed, half = [], 0.0, 0.0, 0.0
    for span in spans:
        if not span.in_graph:
            continue
        found = _layer_bytes(span.context)
        saved, largest = found.mean - span.unsaved, found.largest - span.unsaved
        kept = shared + (_checkpoint_per_token(job, span.context) if job.recomputes else saved)
        if job.recomputes_selectively:
            kept += selective_per_token(span.context)
        restored = largest + shared - kept if job.recomputes else 0.0
        restored += 2 * kept if offload else 0.0
        recomputed, layer, half = max(recomputed, restored), max(layer, largest), max(half, found.mlp_half)
        order.append((span.count, 0.0 if offload else kept * tokens, span.trained_elements))
    backward = BackwardOrder(spans=tuple(order))
    leaves = enters or bool(order)
    return replace(
        every,
        layer_bytes=round(layer * tokens),
        all_layers_bytes=backward.saved_bytes(0),
        outside_blocks_bytes=round(_outside_blocks_per_token(context, stage, flows=(enters, leaves)) * tokens),
        recomputed_bytes=round(recomputed * tokens),
        mlp_half_bytes=round(half * tokens) if context.framework.frees_mlp_first else 0,
        order=backward,
        no_graph_bytes=(round(no_graph_per_token(context) * tokens) if any(not span.in_graph for span in spans) else 0),
    )


def _gradient_enters(job: ResolvedJob, stage: Stage) -> bool:
    """Return True if the first block's input needs a gradient.

    transformers 5 asks for one wherever it checkpoints (``enable_input_require_grads``), as peft always did; pipeline
    stages ask for one for what they receive.
    """
    return not stage.first or stage.trains_embeddings or job.checkpoints_with_gradient


def _layer_bytes(context: LayerContext) -> _LayerBytes:
    arch = context.arch
    attention, cross = attention_half_per_token(context), cross_attention_per_token(context)
    dense_half = mlp_half_per_token(context, moe=False) if arch.dense_layers else 0.0
    moe_half = mlp_half_per_token(context, moe=True) if arch.moe_layers else 0.0
    dense = attention + dense_half if arch.dense_layers else 0.0
    moe = attention + moe_half if arch.moe_layers else 0.0
    moe_share = arch.moe_layers / arch.layers
    return _LayerBytes(
        mean=dense * (1 - moe_share) + moe * moe_share + cross * arch.decoder_layers / arch.layers,
        largest=max(dense, moe) + cross,
        mlp_half=moe_half if arch.moe_layers else dense_half,
    )


def _not_saved_before_adapters(context: LayerContext, stage: Stage) -> float:
    """Bytes that the first block does not save under LoRA: nothing before its first adapter has a gradient."""
    arch = context.arch
    gradient = context.lora_rank is None or not context.framework.embeddings_without_gradient
    if gradient or stage.trains_embeddings or context.recomputes or not stage.first or not arch.causal:
        return 0.0
    norm = norm_per_token(context, arch.hidden)
    if context.drops_adapter_input:  # dropout of a tensor without gradient keeps no mask
        norm += context.readers.get("attention_in", (1, 0))[1] * arch.hidden
    if arch.parallel_residual and not context.readers.get("mlp_in", (1, 0))[1]:
        return norm + mlp_per_token(context, arch.mlp_size)
    return norm


def _previous_graph_per_token(context: LayerContext, stage: Stage) -> float:
    if not keeps_previous_graph(context):
        return 0.0
    quantized = sum(quantized_inputs_per_token(context).values())
    return quantized * stage.layers + context.widths.compute * context.arch.hidden


def _outside_blocks_per_token(context: LayerContext, stage: Stage, *, flows: tuple[bool, bool] = (True, True)) -> float:
    """Return the bytes per token that everything around the blocks saves.

    Args:
        context: the layer.
        stage: the stage.
        flows: whether gradients reach the first block's input, and the last block's output.
    """
    arch, widths = context.arch, context.widths
    enters, leaves = flows
    norm = norm_per_token(context, arch.hidden, trained=_trained_share(context, stage, "norm"), final=True)
    frozen = norm_per_token(context, arch.hidden, trained=0.0, final=True)
    last_norm = norm if leaves or arch.norm == "layer" else norm - frozen
    if not leaves and not _trained_share(context, stage, "norm"):
        last_norm = 0.0
    size = 0.0
    if stage.first:
        size += 8  # token ids
        if context.masks_apart and context.recomputes:  # of bools, and of the block that is recomputed
            size += (1 + widths.compute) * context.length
        elif context.masks_compiled:
            size += widths.compute * context.length * (stage.layers if context.masks_apart else 1)
        if arch.norm == "layer" and not arch.causal and enters:
            size += norm
        if arch.hidden_dropout and enters:
            size += arch.hidden
    if stage.last:
        size += last_norm / context.residual_ranks if arch.causal or arch.norm == "rms" else 0.0
        size += _head_input_per_token(context, stage)
    if stage.last and arch.task == "masked-lm":  # the head's own dense layer, activation and norm
        trained = _trained_share(context, stage, "head") > 0
        size += 2 * widths.compute * arch.hidden + norm if leaves or trained else 0.0
    if arch.encoder_decoder and leaves:  # the encoder's norm, dropout at both ends, its output as the decoder reads it
        size += norm + 2 * arch.hidden + widths.compute * arch.hidden
    return size


def _trained_share(context: LayerContext, stage: Stage, role: Role) -> float:
    """Return the share of a role's parameters outside of the blocks that trains."""
    if stage.runs is None and not stage.partly_trained:
        return context.parts.norms
    held = [each for each in stage.parameters if each.group.role == role and not each.group.layered]
    whole = sum(each.elements for each in held if not each.copied)
    return sum(each.elements for each in held if each.trainable) / max(1, whole)


def _shared_biases_per_token(context: LayerContext) -> float:
    """Bytes per block of what T5's blocks share: the buckets of all pairs per stack, and cross attention's bias."""
    arch = context.arch
    if not arch.relative_buckets:
        return 0.0
    stacks = 2 if arch.decoder_layers else 1
    biases = stacks - 1
    if context.recomputes:
        biases += stacks  # each stack's own, which is passed to all its blocks
    buckets = 8 * stacks * context.length / context.micro_batch
    return (biases * relative_bias_per_token(context) + buckets) / arch.layers


def _head_input_per_token(context: LayerContext, stage: Stage) -> float:
    """Bytes that the head keeps of its input: for its own weight, for an adapter, or as a 4-bit layer."""
    size, c = context.arch.hidden, context.widths.compute
    if not context.arch.has_vocab_head:  # a head over all tokens, or over one of each sequence
        trained = any(local.trainable and local.group.linear for local in stage.head)
        return c * size if stage.partly_trained and context.arch.causal and trained else 0.0
    if stage.trains_head:
        return c * size / context.input_ranks
    adapted = any(local.adapter for local in stage.head)
    quantized = any(local.quantized for local in stage.head)
    kept = c * size if quantized and context.versions.keeps_quantized_inputs else 0
    if adapted and context.framework.adapter_dropout:
        kept += litgpt_dropout_per_token(context.widths, size)
    elif adapted:
        kept += context.adapter_width * size
    return kept


def forward_pass_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Return the temporary memory of a block that runs forward without a graph."""
    context = layer_context(job, arch, stage)
    unpacked = unpacked_bytes(stage.quantized_layers, width=context.framework.unpacked_width)
    elsewhere = 0
    if not stage.first:  # the first block's input, and masks, of which hooks copy one for each block
        others = max(0, score_masks(context) - 1)
        elsewhere = context.widths.residual * arch.hidden + context.widths.compute * context.length * others
    return round((no_graph_per_token(context) - elsewhere) * context.tokens) + unpacked
