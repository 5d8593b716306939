"""Attention and dropout as CUDA's kernels do them, for tensors that only claim to lie on a CPU.

What each kernel saves for its backward pass and needs during it, from ATen's ``native/Dropout.cpp`` and, under
``native/transformers/cuda``, its ``sdp_utils.cpp``, ``attention.cu``, ``attention_backward.cu`` and
``flash_attn/flash_api.cpp``.
On Hopper, newer versions of torch may prefer cuDNN's kernel to flash attention: it saves the same.
Legend: b batch, h heads, s sequence, d head dimension.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

FLASH_HEAD_DIM = 256
"""The largest that flash attention takes."""
LOW = (torch.float16, torch.bfloat16)
BIAS_ALIGNMENT = 16
"""Elements to which the memory-efficient kernel wants a mask's last dimension padded."""
FLASH_NAME = "vramtop_fused_attention"
"""Under this name transformers finds flash attention 2 and 3 here; under theirs it would ask for their packages."""


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    """Attention and dropout allocate as on a card while this is open."""
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention, functional.dropout
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    functional.dropout = dropout
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.dropout = before


def dropout(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """With a mask of one byte per element, where a CPU keeps one of the tensor's type."""
    if not training or p == 0 or inplace:
        return torch.dropout_(tensor, p, training) if inplace else tensor
    return torch.native_dropout(tensor, p, True)[0]


def scaled_dot_product_attention(  # noqa: PLR0917 - torch's own signature
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention by the kernel that CUDA would choose. Shapes (b, h, s, d)."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    same_heads = query.shape[1] == key.shape[1]
    same_size = query.shape[-1] == value.shape[-1] <= FLASH_HEAD_DIM
    if query.dtype in LOW and attn_mask is None and same_size and (same_heads or enable_gqa):
        return _Flash.apply(query, key, value)
    if same_heads:
        return _MemoryEfficient.apply(query, key, value, _bias(attn_mask, query.dtype))
    # neither of the fused kernels shares keys among queries in fp32: the scores are written to memory
    return torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def register_flash_attention() -> None:
    """Make transformers know flash attention without its package.

    Raises:
        ImportError: this transformers takes no attention from outside.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(FLASH_NAME, _flash_for_transformers)
    AttentionMaskInterface.register(FLASH_NAME, flash_attention_mask)


def _flash_for_transformers(
    _module: Any, query: Any, key: Any, value: Any, _mask: Any = None, **_settings: Any
) -> tuple[Any, None]:
    if query.dtype not in LOW:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.bfloat16
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    return _Flash.apply(query, key, value).transpose(1, 2), None


def _bias(mask: Any, dtype: Any) -> Any:
    """A mask as the memory-efficient kernel reads it: additive, with padded rows."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))
    short = -mask.shape[-1] % BIAS_ALIGNMENT
    return torch.nn.functional.pad(mask, (0, short))[..., : mask.shape[-1]] if short else mask


def _output(query: Any, value: Any) -> Any:
    """Laid out in memory as the queries are, when these are dense; (b, h, s, d of the values)."""
    if query.shape[-1] == value.shape[-1]:
        return torch.empty_like(query)
    b, h, s, _ = query.shape
    return query.new_empty((b, s, h, value.shape[-1])).transpose(1, 2)


class _Flash(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves q, k, v, output and an fp32 log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        output = _output(query, value)
        sums = query.new_empty(query.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, _output, _sums = ctx.saved_tensors
        b, h, s, d = query.shape
        rounded = -(-s // 128) * 128
        _keep = gradient.contiguous() if gradient.stride(-1) != 1 else gradient
        dot = query.new_empty((b, h, rounded), dtype=torch.float32)
        total = query.new_empty((b, rounded, h, -(-d // 32) * 32), dtype=torch.float32)
        whole = None
        if key.shape[1] != h:
            whole = [tensor.new_empty((b, tensor.shape[2], h, tensor.shape[3])) for tensor in (key, value)]
        result = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del dot, total, whole
        return result


class _MemoryEfficient(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves q, k, v, the mask, output and an fp32 log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        b, h, s, _ = query.shape
        output = query.new_empty((b, s, h, value.shape[-1])).transpose(1, 2)
        sums = query.new_empty((b, h, -(-s // 32) * 32), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, bias, output, sums)
        return output

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        query, key, value, bias, _output, _sums = ctx.saved_tensors
        b, h, s, d = query.shape
        result = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        delta = query.new_empty((b, h, s), dtype=torch.float32)
        total = query.new_empty((b, h, s, d), dtype=torch.float32) if query.dtype in LOW else None
        of_bias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        del delta, total
        return (*result, of_bias)
