"""A whole transformers model under torch.compile, its loss included, as the Trainer and accelerate compile it.

The min-cut partitioner (torch 2.13 ``_functorch/partitioners.py``) keeps what norms read and products of matrices read
and make, and of the loss 16-bit logits and a sum per token. Blocks of RMSNorms and gated MLPs keep that as stand-ins
do (``fused_kernels``); others are not traced. While it is traced, transformers makes sdpa's mask of all pairs of
positions (5.23 ``masking_utils.py``, ``_ignore_causal_mask_sdpa``), so that keys are copied to all query heads.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..model.build import transformer_blocks, without_adapters
from ..request.errors import UnsupportedError
from .fused_kernels import is_gated_mlp, is_rms_norm
from .losses import full_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..request.request import Parallel


def compile_model(model: Any) -> None:
    """Check that stand-ins exist for all that the partitioner cuts differently, and compile the loss.

    Raises:
        UnsupportedError: there is none for a norm or an MLP of the blocks.
    """
    inner = without_adapters(model)
    for block in transformer_blocks(inner).values():
        name = type(block).__name__
        if not any(is_gated_mlp(module) for module in block.modules()):
            raise UnsupportedError(f"torch.compile of {name}, which has no gated MLP, cannot be traced")
        for module in block.modules():
            if "Norm" in type(module).__name__ and not is_rms_norm(module):
                kind = type(module).__name__
                raise UnsupportedError(f"torch.compile of {name} with {kind} cannot be traced")
    inner.loss_function = _compiled_loss


def check_units(model: Any, parallel: Parallel) -> None:
    """Check that the classes that FSDP1 is to wrap are the blocks, so that its hooks end no graph inside of one.

    Raises:
        UnsupportedError: they are not.
    """
    names = {type(block).__name__ for block in transformer_blocks(model).values()}
    if parallel.flat_sharded and parallel.fsdp_wrap_classes and set(parallel.fsdp_wrap_classes) != names:
        raise UnsupportedError("torch.compile under fsdp1 with units that are not blocks cannot be traced")


def _compiled_loss(logits: Any, labels: Any, *_: Any, **__: Any) -> Any:
    return full_loss(logits, labels, compiled=True)


@contextlib.contextmanager
def shared_casts() -> Iterator[None]:
    """Make adapters that read one tensor share its cast, as equal operations of a graph are one."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        yield
        return
    before = BaseTunerLayer._cast_input_dtype
    latest: list[Any] = [None, None]
    """The tensor that was cast last, and the cast: both belong to the graph."""

    def cast(layer: Any, tensor: Any, dtype: Any) -> Any:
        if tensor is None or torch.is_autocast_enabled("cpu"):  # which would cast it back
            return tensor
        made = latest[1]() if latest[0] is not None and latest[0]() is tensor else None
        if made is None or made.dtype != dtype:
            made = before(layer, tensor, dtype)
            latest[:] = weakref.ref(tensor), weakref.ref(made)
        return made

    BaseTunerLayer._cast_input_dtype = cast
    try:
        yield
    finally:
        BaseTunerLayer._cast_input_dtype = before
