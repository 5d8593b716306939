"""Bytes that the forward pass saves, temporary memory of a block, logits and loss, and the KV cache.

Lives here: formulas per token and per block, each with its source.
Callers: ``formula`` only.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .block import (
        AUTOCAST_ACTIVATION_TENSORS as AUTOCAST_ACTIVATION_TENSORS,
        activation_tensors as activation_tensors,
    )
    from .block_parts import LinearInput as LinearInput, linear_input_of as linear_input_of
    from .kv_cache import (
        generation_cache_bytes as generation_cache_bytes,
        key_value_cache_bytes as key_value_cache_bytes,
        layer_token_bytes as layer_token_bytes,
        prefill_tokens as prefill_tokens,
        sequence_cache_bytes as sequence_cache_bytes,
    )
    from .layer_context import (
        LayerContext as LayerContext,
        uses_eager_attention as uses_eager_attention,
    )
    from .litgpt import head_passes as head_passes
    from .logits_and_loss import gathered_parts as gathered_parts, loss_bytes as loss_bytes
    from .loss_moments import LossBytes as LossBytes
    from .saved_activations import SavedActivations as SavedActivations, forward_pass_bytes as forward_pass_bytes
    from .temporary_memory import score_masks as score_masks
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "block": "activation_tensors AUTOCAST_ACTIVATION_TENSORS",
            "block_parts": "linear_input_of LinearInput",
            "kv_cache": (
                "generation_cache_bytes key_value_cache_bytes layer_token_bytes prefill_tokens sequence_cache_bytes"
            ),
            "layer_context": "LayerContext uses_eager_attention",
            "litgpt": "head_passes",
            "logits_and_loss": "gathered_parts loss_bytes",
            "loss_moments": "LossBytes",
            "saved_activations": "forward_pass_bytes SavedActivations",
            "temporary_memory": "score_masks",
        },
    )
