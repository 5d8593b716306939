"""Bytes that the forward pass of one pipeline stage saves for the backward pass, in its blocks and outside of them.

The formulas per block are in ``block``, ``attention`` and ``temporary``; tests compare them with what autograd saves on
real models. All figures are for the tokens of one micro-batch.

Counted in traced steps of transformers 5's blocks, in autograd's order of operations; the whole is compared with
traces of many families and settings. Other sources stand beside what is read there.
"""

from typing import Any

import msgspec
from msgspec import Struct

from ...common.records import replace
from ...job.resolved_job import ResolvedJob
from ...model.architecture import Architecture
from ...model.inventory import Role
from ...model.rank_share import Stage, unpacked_bytes
from .attention import relative_bias_per_token
from .block import (
    attention_half_per_token,
    cross_attention_per_token,
    mlp_half_per_token,
    mlp_per_token,
    norm_per_token,
    quantized_inputs_per_token,
    selective_per_token,
)
from .frozen_blocks import BackwardOrder, block_spans, with_flat_units
from .layer_context import LayerContext, layer_context
from .litgpt import keeps_previous_graph, litgpt_dropout_per_token
from .temporary import (
    attention_backward_per_token,
    forward_per_token,
    mlp_backward_per_token,
    no_graph_per_token,
    norm_backward_per_token,
    score_masks,
)


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
    tokens, longer = context.tokens, context
    if context.targets > context.length:
        longer = replace(context, length=context.targets)
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
    unpacked = unpacked_bytes(
        stage.quantized_layers, width=context.framework.unpacked_width, experts=job.quantizes_experts
    )
    all_layers = kept * stage.layers - _not_saved_before_adapters(context, stage)
    weights = unpacked * stage.layers if job.quantizes_experts and not job.recomputes else 0
    return SavedActivations(
        layer_bytes=round(layer.largest * tokens),
        all_layers_bytes=0 if offload else round(all_layers * tokens) + weights,
        outside_blocks_bytes=round(_outside_blocks_per_token(context, stage) * tokens),
        recomputed_bytes=round(recomputed * tokens),
        mlp_half_bytes=round(half * tokens) if context.framework.frees_mlp_first else 0,
        mlp_backward_bytes=round(mlp_backward_per_token(longer) * longer.tokens) + unpacked,
        attention_backward_bytes=round(attention_backward_per_token(longer) * longer.tokens) + unpacked,
        norm_backward_bytes=round(norm_backward_per_token(longer, final=True) * longer.tokens),
        forward_temporary_bytes=round(forward_per_token(longer) * longer.tokens) + unpacked,
        boundary_bytes=round(boundary * longer.tokens),
        previous_graph_bytes=round(_previous_graph_per_token(context, stage) * tokens),
        unfused_bytes=_unfused_bytes(job, context, stage, layer.largest),
    )


def _checkpoint_per_token(job: ResolvedJob, context: LayerContext) -> float:
    """Bytes per token that a checkpointed block keeps: its input, or those of both norms and what reads them."""
    boundary = job.widths.residual * context.arch.hidden / context.residual_ranks
    if context.arch.encoder_decoder:
        boundary *= 1 - (1 - context.targets / context.length) * context.arch.decoder_layers / context.arch.layers
    if context.quantization == "int8" and job.versions.checkpoints_with_gradient and not job.recomputes_selectively:
        # what MatMul8bitLt's context holds is no saved tensor, which non-reentrant checkpointing would drop
        boundary += sum(quantized_inputs_per_token(context, every=True).values())
    if not job.checkpoints_parts:
        return boundary
    return 2 * (boundary + job.widths.compute * context.arch.hidden / context.residual_ranks)


def _unfused_bytes(job: ResolvedJob, context: LayerContext, stage: Stage, largest: float) -> int:
    """Return the bytes that a stage saves more without fused kernels that are assumed: of one layer if recomputed."""
    without: dict[str, Any] = {}
    if job.assumes_fused_kernels and context.fused and not context.compiled:
        without["fused"] = frozenset()
    if context.arch.own_code and context.asks_sdpa:
        without |= {"eager_attention": True, "math_attention": False}
    if not without:
        return 0
    more = _layer_bytes(replace(context, **without)).largest - largest
    layers = 1 if job.recomputes or job.training.activation_offload else stage.layers
    return round(more * layers * context.tokens)


def _with_frozen_parts(job: ResolvedJob, context: LayerContext, stage: Stage) -> SavedActivations:
    """Return the same where parts of the blocks are frozen."""
    arch, tokens, offload = context.arch, context.tokens, job.training.activation_offload
    shared = _shared_biases_per_token(context)
    every = saved_activations(job, arch, replace(stage, runs=None))
    stage, in_root = with_flat_units(job, stage)
    # transformers 5 asks for a gradient of the first block's input wherever it checkpoints
    # (``enable_input_require_grads``), as peft always did; pipeline stages ask for one for what they receive
    enters = in_root or not stage.first or stage.trains_embeddings or job.checkpoints_with_gradient
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


def _layer_bytes(context: LayerContext) -> _LayerBytes:
    arch = context.arch
    block = _block_bytes(context)
    if not arch.encoder_decoder:
        return block
    in_decoder = arch.decoder_layers / arch.layers
    share = context.targets / context.length  # tokens of the decoder per token of the encoder
    decoder = block if share == 1 else _block_bytes(replace(context, length=context.targets))
    # keys and values are of the encoder's tokens; scores are of both
    keys = context.widths.compute * (arch.key_size + arch.value_size) / context.tensor_parallel
    cross = cross_attention_per_token(context) * share + keys * max(0.0, 1 - share)
    return _LayerBytes(
        mean=block.mean * (1 - in_decoder) + (decoder.mean * share + cross) * in_decoder,
        largest=max(block.largest, decoder.largest * share + cross),
        mlp_half=max(block.mlp_half, decoder.mlp_half * share),
    )


def _block_bytes(context: LayerContext) -> _LayerBytes:
    """Bytes per token that the blocks of one stack save, without cross attention."""
    arch = context.arch
    attention = attention_half_per_token(context)
    dense_half = mlp_half_per_token(context, moe=False) if arch.dense_layers else 0.0
    moe_half = mlp_half_per_token(context, moe=True) if arch.moe_layers else 0.0
    dense = attention + dense_half if arch.dense_layers else 0.0
    moe = attention + moe_half if arch.moe_layers else 0.0
    moe_share = arch.moe_layers / arch.layers
    return _LayerBytes(
        mean=dense * (1 - moe_share) + moe * moe_share,
        largest=max(dense, moe),
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
    """Bytes of its input that the head saves for the backward pass: for its weight, an adapter, or as a 4-bit layer."""
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
