"""Attention, dropout, softmax and embeddings as CUDA's kernels do them, for tensors that only claim to lie on a CPU.

Fake tensors on "cuda" would need no stand-ins, but autograd's engine asks for a device that is really there. What each
kernel saves for its backward pass and needs during it comes from ATen's ``native/Dropout.cpp``, ``native/SoftMax.cpp``,
``native/cuda/Embedding.cu``, ``EmbeddingBackwardKernel.cu`` and, under ``native/transformers/cuda``, its
``sdp_utils.cpp``, ``attention.cu``, ``attention_backward.cu``, ``flash_attn/flash_api.cpp`` and
``mem_eff_attention/kernel_backward.h``; the tests compare what is saved and returned with torch's own kernels for
tensors without data (run with torch 2.12.1 for CUDA 13 and 2.13.0), which do not tell what a kernel needs meanwhile.
Of whole forward passes, known to differ still: the statistics of ``layer_norm`` of 16-bit inputs (fp32 on a card, four
bytes more per token) and ``torch.nn.RMSNorm`` (one kernel on a card, from torch 2.9 on).
The choice is that of a card from sm_80 on. With cuDNN from 9.15.1, torch 2.11 and newer prefer its kernel on Hopper and
Blackwell: it saves the same, and what it needs meanwhile is not published and taken to be the same.
Legend: b batch, h heads, s sequence, d head dimension.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

FLASH_HEAD_DIM = 256
"""The largest that flash attention takes."""
LOW = (torch.float16, torch.bfloat16)
BIAS_ALIGNMENT = 16
"""Elements to which the memory-efficient kernel wants a mask's last dimension padded."""
FEW_TOKENS, PIECE = 3072, 10
"""Up to so many tokens, an embedding's gradient needs no partial sums; else one for so many tokens of a row."""
FLASH_NAME = "vramtop_fused_attention"
"""Under this name transformers finds flash attention 2 and 3 here; under theirs it would ask for their packages."""


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    """Attention, dropout, softmax and embeddings allocate as on a card while this is open."""
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention, functional.dropout
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    functional.dropout = dropout
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            composite = "CompositeImplicitAutograd"
            library.impl("softmax.int", _softmax(torch.ops.aten._softmax.default), composite)
            library.impl("log_softmax.int", _softmax(torch.ops.aten._log_softmax.default), composite)
            library.impl("embedding_dense_backward", _embedding_backward, "AutogradCPU")
        yield
    finally:
        library._destroy()
        functional.scaled_dot_product_attention, functional.dropout = before


def _softmax(kernel: Any) -> Any:
    """Widens fp16 while it computes, where a CPU makes a copy of its input first."""

    def run(tensor: Any, dim: int, dtype: Any = None) -> Any:
        if tensor.dtype == torch.float16 and dtype == torch.float32:
            return kernel(tensor, dim, True)
        return kernel(tensor if dtype is None else tensor.to(dtype), dim, False)

    return run


def _embedding_backward(gradient: Any, ids: Any, rows: int, *settings: Any) -> Any:
    """Sums up in fp32 what belongs to the same row, in pieces, for the largest number of which there is room."""
    with torch._C._AutoDispatchBelowAutograd():
        gradient = gradient.contiguous()
        result = torch.ops.aten.embedding_dense_backward.default(gradient, ids, rows, *settings)
        tokens = ids.numel()
        if tokens > FEW_TOKENS:
            pieces = tokens // PIECE + min(tokens, rows)
            _order = [torch.empty_like(ids) for _ in range(2)]
            _partial = gradient.new_empty((pieces, gradient.shape[-1]), dtype=torch.float32)
        return result


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
        return _flash(query, key, value)
    aligned = 16 // query.element_size()
    if same_heads and query.shape[-1] % aligned == value.shape[-1] % aligned == 0:
        return _MemoryEfficient.apply(query, key, value, _bias(attn_mask, query.dtype))[0]
    # up to torch 2.13 neither of the fused kernels shares keys among queries in fp32: scores are written to memory
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
    return _flash(query, key, value).transpose(1, 2), None


def _flash(query: Any, key: Any, value: Any) -> Any:
    """Flash attention, whose heads have a multiple of eight elements."""
    d = query.shape[-1]
    if d % 8:
        query, key, value = (torch.nn.functional.pad(tensor, (0, -d % 8)) for tensor in (query, key, value))
    return _Flash.apply(query, key, value)[0][..., :d]


def _bias(mask: Any, dtype: Any) -> Any:
    """A mask as the memory-efficient kernel reads it: additive, with padded rows."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))
    short = -mask.shape[-1] % BIAS_ALIGNMENT
    return torch.nn.functional.pad(mask, (0, short))[..., : mask.shape[-1]] if short else mask


class _Flash(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves q, k, v, output, an fp32 log-sum-exp and the state of the random numbers; returns what it makes."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        output = torch.empty_like(query)
        made = query.new_empty(query.shape[:3], dtype=torch.float32), *_random_state(query)
        ctx.mark_non_differentiable(*made)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, output, *made)
        return (output, *made)

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_none: Any) -> Any:
        query, key, value, output, *_made = ctx.saved_tensors
        b, h, s, d = query.shape
        step = 32 if d <= 128 else 64
        dense = [tensor.transpose(1, 2).contiguous() for tensor in (gradient, output)]
        result = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        rounded = -(-s // 128) * 128
        dot = query.new_empty((b, h, rounded), dtype=torch.float32)
        total = query.new_empty((b, rounded, h, -(-d // step) * step), dtype=torch.float32)
        whole = None
        if key.shape[1] != h:
            whole = [tensor.new_empty((b, tensor.shape[2], h, tensor.shape[3])) for tensor in (key, value)]
        del dot, total, whole, dense
        return result


class _MemoryEfficient(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves q, k, v, the mask, output and an fp32 log-sum-exp; returns what it makes."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        b, h, s, _ = query.shape
        output = query.new_empty((b, s, h, value.shape[-1])).transpose(1, 2)
        sums = query.new_empty((b, h, -(-s // 32) * 32), dtype=torch.float32)
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, bias, output, sums)
        return output, sums

    @staticmethod
    def backward(ctx: Any, gradient: Any, _none: Any) -> Any:
        query, key, value, bias, output, _sums = ctx.saved_tensors
        b, h, s, d = query.shape
        dense = gradient.transpose(1, 2).contiguous()
        result = [tensor.new_empty(_swapped(tensor)).transpose(1, 2) for tensor in (query, key, value)]
        of_bias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        if query.dtype in LOW:
            delta = query.new_empty((b, h, s), dtype=torch.float32)
        else:  # the kernel for fp32 leaves this sum to others
            delta = (dense.float() * output.transpose(1, 2).float()).sum(-1).transpose(-2, -1).contiguous()
        block = 64 if d <= 64 else 128
        total = query.new_empty((b, h, -(-s // block) * block, -(-d // block) * block), dtype=torch.float32)
        del delta, total, dense
        return (*result, of_bias)


def _random_state(query: Any) -> Any:
    """Seed and offset: two small tensors on the card, with dropout or without."""
    return query.new_empty(2, dtype=torch.int64), query.new_empty((), dtype=torch.int64)


def _swapped(tensor: Any) -> tuple[int, ...]:
    b, h, s, d = tensor.shape
    return b, s, h, d
