"""torchtitan's selective activation checkpointing: attention's output and every second matrix product are kept.

Source: torchtitan ``distributed/activation_checkpoint.py`` (``_apply_op_sac``; before, ``parallelize_llama.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_PRODUCT, _EMPTY = torch.ops.aten.mm.default, torch.ops.aten.empty_like.default
_attention_outputs = [0]
"""Number of outputs of attention that are being allocated: stand-ins of kernels are no operations of their own."""


def attention_output(query: Any) -> Any:
    """Allocate attention's output, which selective checkpointing keeps."""
    _attention_outputs[0] += 1
    try:
        return torch.empty_like(query)
    finally:
        _attention_outputs[0] -= 1


def keeping_contexts(unread_width: int | None) -> Callable[[], Any]:
    """Return the function that makes the contexts of one block's forward pass and recomputation.

    Args:
        unread_width: width of the inputs of products that are not kept, as nothing reads them in the backward pass,
            which the partitioner of compiled blocks sees; None: all are treated alike.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def contexts() -> Any:
        products = {True: 0, False: 0}

        def policy(context: Any, func: Any, *args: Any, **_kwargs: Any) -> Any:
            kept = func is _EMPTY and _attention_outputs[0] > 0
            if func is _PRODUCT:
                products[context.is_recompute] += 1
                kept = products[context.is_recompute] % 2 == 1 and args[1].shape[0] != unread_width
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return contexts
