"""torchtitan's selective activation checkpointing: attention's output and every second matrix product are kept.

Source: torchtitan ``distributed/activation_checkpoint.py`` (``_apply_op_sac``; before, ``parallelize_llama.py``). Of
experts, the tokens that ranks exchange are kept, and a router's product is recomputed and not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..model.experts.titan_routing import Router, exchanging

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


def gate_shapes(model: Any) -> frozenset[tuple[int, ...]]:
    """Return the shapes of the transposed weights of the model's routers (``moe.router.gate``)."""
    gates = (module.gate.weight for module in model.modules() if isinstance(module, Router))
    return frozenset((weight.shape[1], weight.shape[0]) for weight in gates)


def keeping_contexts(
    unread_width: int | None, recomputed: frozenset[tuple[int, ...]] = frozenset()
) -> Callable[[], Any]:
    """Return the function that makes the contexts of one block's forward pass and recomputation.

    Args:
        unread_width: width of the inputs of products that are not kept, as nothing reads them in the backward pass,
            which the partitioner of compiled blocks sees; None: all are treated alike.
        recomputed: shapes of matrices whose products are recomputed, and are not among those that are counted.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def contexts() -> Any:
        products = {True: 0, False: 0}

        def policy(context: Any, func: Any, *args: Any, **_kwargs: Any) -> Any:
            kept = func is _EMPTY and (_attention_outputs[0] > 0 or exchanging())
            if func is _PRODUCT and tuple(args[1].shape) not in recomputed:
                products[context.is_recompute] += 1
                kept = products[context.is_recompute] % 2 == 1 and args[1].shape[0] != unread_width
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return contexts
