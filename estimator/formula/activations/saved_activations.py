"""Bytes that the forward pass saves for the backward pass, on one stage: by its blocks and around them.

The formulas per block are in ``block``, ``attention`` and ``temporary_memory``; tests compare them with what autograd
saves on real models. All figures are for the tokens of one micro-batch.
"""

from dataclasses import dataclass

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...job.version_rules import keeps_quantized_inputs
from ...model.architecture import Architecture
from ...model.rank_share import Stage, unpacked_bytes
from . import litgpt
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
from .kv_cache import sequence_cache_bytes
from .layer_context import LayerContext, layer_context, tokens_per_rank
from .temporary_memory import (
    attention_backward_per_token,
    forward_per_token,
    mlp_backward_per_token,
    norm_backward_per_token,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedActivations:
    """What is saved of one micro-batch on one stage."""

    layer_bytes: int
    """By one layer in full; the fullest kind of layer, where they differ."""
    all_layers_bytes: int
    """By all layers of the stage, as checkpointing leaves them."""
    outside_blocks_bytes: int
    """By embedding, final norm and head, logits and loss excepted."""
    recomputed_bytes: int
    """What one layer's backward pass brings back first, of what checkpointing or offloading took away."""
    mlp_half_bytes: int
    """Of one layer what is gone again when the half with the MLP has run backward."""
    mlp_backward_bytes: int
    """What one layer's MLP needs besides while it runs backward."""
    attention_backward_bytes: int
    """The same for its attention."""
    norm_backward_bytes: int
    """What a norm needs while it runs backward."""
    forward_temporary_bytes: int
    """What one layer's forward pass needs besides what it saves."""
    boundary_bytes: int
    """The residual stream between two blocks."""
    previous_graph_bytes: int = 0
    """What the graph of the micro-batch before still holds during the forward pass."""


def saved_activations(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> SavedActivations:
    """What the forward pass of one micro-batch saves on a stage."""
    context = layer_context(job, arch, stage, widths)
    tokens = tokens_per_rank(job)
    attention = attention_half_per_token(context)
    dense_half = mlp_half_per_token(context, moe=False) if arch.dense_layers else 0.0
    moe_half = mlp_half_per_token(context, moe=True) if arch.moe_layers else 0.0
    dense = attention + dense_half if arch.dense_layers else 0.0
    moe = attention + moe_half if arch.moe_layers else 0.0
    moe_share = arch.moe_layers / arch.layers
    cross = cross_attention_per_token(context)
    mean = dense * (1 - moe_share) + moe * moe_share + cross * arch.decoder_layers / arch.layers
    fullest = max(dense, moe) + cross
    shared = _shared_biases_per_token(context)
    checkpoint = widths.residual * arch.hidden / context.residual_ranks
    checkpointing, offload = job.training.activation_checkpointing, job.training.activation_offload
    kept = shared + (mean if checkpointing == "none" else checkpoint)
    if checkpointing == "selective":
        kept += selective_per_token(context)
    recomputed = fullest + shared - kept if checkpointing != "none" else 0.0
    if offload:
        recomputed += 2 * kept  # one layer on its way out or in, one in use
    gone = (moe_half if arch.moe_layers else dense_half) if job.training.framework == "transformers" else 0.0
    unpacked = unpacked_bytes(job, stage.quantized_layers)
    return SavedActivations(
        layer_bytes=round(fullest * tokens),
        all_layers_bytes=0
        if offload
        else round((kept * stage.layers - _not_saved_before_adapters(context, stage)) * tokens),
        outside_blocks_bytes=round(_outside_blocks_per_token(context, stage) * tokens),
        recomputed_bytes=round(recomputed * tokens),
        mlp_half_bytes=round(gone * tokens),
        mlp_backward_bytes=round(mlp_backward_per_token(context) * tokens) + unpacked,
        attention_backward_bytes=round(attention_backward_per_token(context) * tokens) + unpacked,
        norm_backward_bytes=round(norm_backward_per_token(context) * tokens),
        forward_temporary_bytes=round(forward_per_token(context) * tokens) + unpacked,
        boundary_bytes=round(checkpoint * tokens),
        previous_graph_bytes=round(_previous_graph_per_token(context, stage) * tokens),
    )


def key_value_cache_bytes(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> int:
    """Keys and values of every token and layer that inference keeps; 0 in training, which has no such cache."""
    if job.training.mode != "inference" or not arch.has_vocab_head or arch.task == "masked-lm":
        return 0
    length = -(-job.training.sequence_length // job.parallel.context)
    return job.training.micro_batch * sequence_cache_bytes(job, arch, stage.layers, widths, length)


def _not_saved_before_adapters(context: LayerContext, stage: Stage) -> float:
    """What the first block does not save under LoRA, because nothing before its first adapter has a gradient."""
    arch, job = context.arch, context.job
    if (
        context.trains_weights
        or context.recomputes
        or not stage.first
        or job.training.framework != "transformers"
        or not arch.causal
    ):
        return 0.0
    norm = norm_per_token(context, arch.hidden)
    if arch.parallel_residual and not context.readers.get("mlp_in", (1, 0))[1]:
        return norm + mlp_per_token(context, arch.mlp_size)
    return norm


def _previous_graph_per_token(context: LayerContext, stage: Stage) -> float:
    if not litgpt.keeps_previous_graph(context.job):
        return 0.0
    return (
        sum(quantized_inputs_per_token(context).values()) * stage.layers + context.widths.compute * context.arch.hidden
    )


def _outside_blocks_per_token(context: LayerContext, stage: Stage) -> float:
    arch, widths = context.arch, context.widths
    size = 0.0
    if stage.first:
        size += 8  # token ids
        if arch.norm == "layer" and not arch.causal:
            size += norm_per_token(context, arch.hidden)
        if arch.hidden_dropout:
            size += arch.hidden
    if stage.last:
        size += (
            norm_per_token(context, arch.hidden) / context.residual_ranks if arch.causal or arch.norm == "rms" else 0.0
        )
        size += _head_input_per_token(context, stage) if arch.has_vocab_head else 0.0
    if stage.last and arch.task == "masked-lm":  # the head's own dense layer, activation and norm
        size += 2 * widths.compute * arch.hidden + norm_per_token(context, arch.hidden)
    if arch.encoder_decoder:  # the encoder's norm, dropped out at both ends, and its output as the decoder reads it
        size += norm_per_token(context, arch.hidden) + 2 * arch.hidden + widths.compute * arch.hidden
    return size


def _shared_biases_per_token(context: LayerContext) -> float:
    """What T5's blocks share per block: of each stack the buckets of all pairs, and cross attention's bias."""
    arch = context.arch
    if not arch.relative_buckets:
        return 0.0
    stacks = 2 if arch.decoder_layers else 1
    biases = stacks - 1
    if context.recomputes:
        biases += stacks  # each stack's own, which all its blocks are given
    buckets = 8 * stacks * context.length / context.job.training.micro_batch
    return (biases * relative_bias_per_token(context) + buckets) / arch.layers


def _head_input_per_token(context: LayerContext, stage: Stage) -> float:
    """What the head keeps of its input: for its own weight, for an adapter, or as a 4-bit layer."""
    size, c = context.arch.hidden, context.widths.compute
    if context.trains_weights:
        return c * size
    adapted = any(held.adapter for held in stage.head)
    quantized = any(held.quantized for held in stage.head)
    kept = c * size if quantized and keeps_quantized_inputs(context.job) else 0
    if adapted:
        dropped = context.job.training.framework == "litgpt"
        kept += litgpt.dropout_per_token(context.widths, size) if dropped else context.adapter_width * size
    return kept
