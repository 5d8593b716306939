"""A whole transformers model under torch.compile, its loss included, as the Trainer and accelerate compile it.

The min-cut partitioner (torch 2.13 ``_functorch/partitioners.py``) keeps what norms read and products of matrices read
and make, and of the loss 16-bit logits and a sum per token. Blocks of RMSNorms and gated MLPs keep that as stand-ins
do (``fused_kernels``); others are not traced. While it is traced, transformers makes sdpa's mask of all pairs of
positions (5.23 ``masking_utils.py``, ``_ignore_causal_mask_sdpa``), so that keys are copied to all query heads.
"""

from __future__ import annotations

from typing import Any

from ..model.build import transformer_blocks
from ..request.errors import UnsupportedError
from .fused_kernels import is_gated_mlp, is_rms_norm
from .losses import full_loss


def compile_model(model: Any) -> None:
    """Check that stand-ins exist for all that the partitioner cuts differently, and compile the loss.

    Raises:
        UnsupportedError: there is none for a norm or an MLP of the blocks.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    for block in transformer_blocks(inner).values():
        name = type(block).__name__
        if not any(is_gated_mlp(module) for module in block.modules()):
            raise UnsupportedError(f"torch.compile of {name}, which has no gated MLP, cannot be traced")
        for module in block.modules():
            if "Norm" in type(module).__name__ and not is_rms_norm(module):
                kind = type(module).__name__
                raise UnsupportedError(f"torch.compile of {name} with {kind} cannot be traced")
    inner.loss_function = _compiled_loss


def _compiled_loss(logits: Any, labels: Any, *_: Any, **__: Any) -> Any:
    return full_loss(logits, labels, compiled=True)
