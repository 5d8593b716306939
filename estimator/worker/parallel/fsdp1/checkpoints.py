"""Checkpointing around FSDP1's units, as transformers had it before 4.52.

Its models called ``self._gradient_checkpointing_func(decoder_layer.__call__, ...)`` with ``use_reentrant=True``, and
the layer is FSDP's unit then (4.48, ``models/llama/modeling_llama.py`` and ``modeling_utils.py``); since 4.52 a layer
checkpoints itself, inside of its unit (``modeling_layers.py``, ``GradientCheckpointingLayer``).

For a unit whose parameters are frozen FSDP1 registers a hook on the gradients of its inputs
(``_register_post_backward_reshard_only_hook``). In a reentrant checkpoint these inputs are leaves of a graph of their
own: the hook keeps ``AccumulateGrad`` of each alive, and that its tensor and gradient, until FSDP removes the hook at
the end of the backward pass. So each block keeps its input and the gradient of it.
"""

from __future__ import annotations

import functools
from typing import Any

from ...model.build import transformer_blocks


def checkpoint_units(model: Any, wrapped: Any) -> None:
    """Checkpoint the blocks' units from the outside, in place, and no longer the blocks inside of them.

    Args:
        model: the model in FSDP's root, whose blocks checkpoint themselves.
        wrapped: the root.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    blocks = set(transformer_blocks(model).values())
    for block in blocks:
        block.gradient_checkpointing = False
    for module in wrapped.modules():
        inner = module.module if isinstance(module, FullyShardedDataParallel) else module
        if inner in blocks and (module is not inner or not _is_wrapped(inner, wrapped)):
            module.forward = _checkpointed(module.forward)


def _is_wrapped(block: Any, wrapped: Any) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(each, FullyShardedDataParallel) and each.module is block for each in wrapped.modules())


def _checkpointed(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(forward, **kwargs), *args, use_reentrant=True)

    return run
