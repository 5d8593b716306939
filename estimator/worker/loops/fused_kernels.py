"""Stand-ins for fused kernels: autograd functions that save and allocate what Liger-Kernel's or torch's own kernels do.

Liger-Kernel 0.8.2: ``ops/rms_norm.py``, ``ops/swiglu.py``, ``ops/rope.py``, ``transformers/monkey_patch.py``. Compiled
blocks (torch's min-cut partitioner) save the same, but write no gradient over another tensor.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from ..model.build import transformer_blocks
from ..replaced import replaced
from .attention_mask import masks_made
from .state_spaces import fused_state_spaces, kernel_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..request.request import Loop

PROCESSORS = 132
"""Rows of a norm's partial sums: one per multiprocessor of an H100."""
_ROTATION = "apply_rotary_pos_emb"


def fuse_modules(model: Any, loop: Loop) -> None:
    """Make the model's norms and MLPs allocate as the loop's fused kernels do."""
    if "norm" in loop.fused or loop.torch_norm:
        _fuse_norms(model, loop)
    if "mlp" in loop.fused:
        _fuse_mlps(model, loop)


@contextlib.contextmanager
def attention_of_loop(model: Any, loop: Loop) -> Iterator[None]:
    """Make rotary embeddings work in place, and attention copy keys, as the loop does."""
    with contextlib.ExitStack() as stack:
        if "rope" in loop.fused:
            for name in _block_modules(model):
                stack.enter_context(_replaced_in(name, _ROTATION, _rotate_in_place))
        if loop.masks_attention:
            stack.enter_context(masks_made(per_block=loop.masks_per_block))
        if loop.repeats_keys:
            stack.enter_context(_replaced_in("transformers.integrations.sdpa_attention", "use_gqa_in_sdpa", _never))
        if kernel_versions(_block_modules(model)):
            stack.enter_context(fused_state_spaces(_block_modules(model)))
        yield


def is_rms_norm(module: Any) -> bool:
    """Return True if a module is an RMSNorm with a weight."""
    return "RMSNorm" in type(module).__name__ and getattr(module, "weight", None) is not None


def is_gated_mlp(module: Any) -> bool:
    """Return True if a module is an MLP whose two first projections are multiplied."""
    return _gated_forward(module) is not None


def _fuse_norms(model: Any, loop: Loop) -> None:
    in_blocks = {f"{at}.{name}" for at, block in transformer_blocks(model).items() for name, _ in block.named_modules()}
    for name, module in model.named_modules():
        own = name.rpartition(".")[2]
        if not is_rms_norm(module) or (own in ("q_norm", "k_norm") and not loop.fuses_query_norms):
            continue
        fused = "norm" in loop.fused and not (loop.final_norm_eager and name not in in_blocks)
        if fused or loop.torch_norm:
            module.forward = _bound(_norm if fused else _torch_norm, module, loop.in_place)


def _fuse_mlps(model: Any, loop: Loop) -> None:
    for module in model.modules():
        forward = _gated_forward(module)
        if forward is not None:
            module.forward = _bound(forward, module, loop.in_place)


def _gated_forward(module: Any) -> Callable[..., Any] | None:
    """Return the stand-in for a gated MLP's forward pass; None: the module is none."""
    linear = {name for name, child in module.named_children() if hasattr(child, "weight") or hasattr(child, "lora_A")}
    if {"gate_proj", "up_proj", "down_proj"} <= linear:
        return _gated_mlp
    return _fused_gated_mlp if {"gate_up_proj", "down_proj"} <= linear else None


def _bound(function: Callable[..., Any], module: Any, in_place: bool) -> Callable[..., Any]:
    return lambda hidden, *_args, **_kwargs: function(module, hidden, in_place)


def _norm(module: Any, hidden: Any, in_place: bool) -> Any:
    return _Norm.apply(hidden, module.weight, in_place)


def _torch_norm(module: Any, hidden: Any, _in_place: bool) -> Any:
    """Run torch's RMSNorm as on CUDA before torch 2.9 (``rms_norm_composite`` in ATen/native/layer_norm.cpp)."""
    wide = hidden.float()
    normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normalized * module.weight).to(hidden.dtype)


def _gated_mlp(module: Any, hidden: Any, in_place: bool) -> Any:
    return module.down_proj(_Product.apply(module.gate_proj(hidden), module.up_proj(hidden), in_place))


def _fused_gated_mlp(module: Any, hidden: Any, in_place: bool) -> Any:
    gate, up = module.gate_up_proj(hidden).chunk(2, dim=-1)
    return module.down_proj(_Product.apply(gate.contiguous(), up.contiguous(), in_place))


class _Norm(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """RMSNorm in one kernel: saves its input and the reciprocal deviation."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, in_place: bool) -> Any:
        deviation = hidden.new_empty(hidden.shape[:-1], dtype=torch.float32)
        ctx.in_place = in_place
        ctx.save_for_backward(hidden, weight, deviation)
        if not in_place and torch.is_autocast_enabled("cpu"):  # compiled with the cast that what reads it makes
            return torch.empty_like(hidden, dtype=torch.get_autocast_dtype("cpu"))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        hidden, weight, _deviation = ctx.saved_tensors
        sums = weight.new_empty((PROCESSORS, weight.shape[-1]), dtype=torch.float32)
        result = gradient if ctx.in_place else torch.empty_like(hidden)
        return result, sums.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None, None


class _Product(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Product of a gate's activation and another projection: saves both, and not the activation."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, in_place: bool) -> Any:
        ctx.in_place = in_place
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        gate, up = ctx.saved_tensors
        if ctx.in_place:
            return gate, up, None
        return torch.empty_like(gate), torch.empty_like(up), None


class _Rotation(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Rotary embedding in place."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any) -> Any:
        del ctx
        return query.view_as(query), key.view_as(key)

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any) -> Any:
        del ctx
        return query, key


def _rotate_in_place(query: Any, key: Any, *_args: Any, **_kwargs: Any) -> Any:
    return _Rotation.apply(query, key)


def _never(*_args: Any, **_kwargs: Any) -> bool:
    return False


def _block_modules(model: Any) -> list[str]:
    """Return the Python modules of the model's blocks, which hold the function that rotates."""
    return sorted({type(block).__module__ for block in transformer_blocks(model).values()})


def _replaced_in(module: str, name: str, replacement: Any) -> contextlib.AbstractContextManager[None]:
    """Replace a function of a module; nothing, if that is not imported or has no such function."""
    owner = sys.modules.get(module)
    known = getattr(owner, name, None) is not None
    return replaced((owner, name, replacement)) if known else contextlib.nullcontext()
