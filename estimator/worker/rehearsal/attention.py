"""Attention of flash-attn and xformers, whose kernels need a GPU: they take what those that torch has built in take.

Source: flash-attn 2.8 (``flash_attn_interface.py``, ``csrc/flash_attn/flash_api.cpp``), of which torch has a copy;
xformers 0.0.35 (``ops/fmha``), which takes flash attention where it can and its CUTLASS kernel otherwise.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .cuda_kernels import LOW_PRECISION, flash_attention
from .fake_gpu import FakeGpus, program_frames
from .handlers import goes_on_without
from .imports import after_import

_FLASH = "flash_attn"
_MODULES = (_FLASH, f"{_FLASH}.flash_attn_interface", f"{_FLASH}.bert_padding")


def flash_attn_func(q: Any, k: Any, v: Any, *settings: Any, return_attn_probs: bool = False, **_: Any) -> Any:
    """Attention over tensors of batch, sequence, heads and head dimension."""
    del settings  # dropout, scale, mask, window: none of them changes what is allocated
    output = flash_attention(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)
    if not return_attn_probs:
        return output
    return output, q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32), None


def flash_attn_varlen_func(q: Any, k: Any, v: Any, *settings: Any, **named: Any) -> Any:
    """Attention over sequences that are packed behind each other: tokens, heads, head dimension."""
    found = flash_attn_func(q[None], k[None], v[None], *settings, **named)
    return (found[0][0], found[1][0], None) if isinstance(found, tuple) else found[0]


def _packed(function: Any, dim: int, *, has_query: bool = False) -> Any:
    """Return a kernel that takes key and value, or query, key and value, in one tensor."""

    def run(*args: Any, **named: Any) -> Any:
        at = int(has_query)
        return function(*args[:at], *args[at].unbind(dim), *args[at + 1 :], **named)

    return run


def index_first_axis(tokens: Any, indices: Any) -> Any:
    """Take tokens out of a batch without padding."""
    return tokens[indices]


def pad_input(tokens: Any, indices: Any, batch: int, sequence: int) -> Any:
    """Put packed tokens back into a batch with padding."""
    padded = tokens.new_zeros((batch * sequence, *tokens.shape[1:]))
    padded[indices] = tokens
    return padded.unflatten(0, (batch, sequence))


def unpad_input(padded: Any, mask: Any, *_: Any) -> tuple[Any, ...]:
    """Pack a batch: the tokens, where they were, the sum of lengths before each sequence, the longest."""
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    before = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return padded.flatten(0, 1)[indices], indices, before, int(lengths.max())


_FUNCTIONS = {
    "flash_attn_func": flash_attn_func,
    "flash_attn_varlen_func": flash_attn_varlen_func,
    "flash_attn_qkvpacked_func": _packed(flash_attn_func, 2),
    "flash_attn_kvpacked_func": _packed(flash_attn_func, 2, has_query=True),
    "flash_attn_varlen_qkvpacked_func": _packed(flash_attn_varlen_func, 1),
    "flash_attn_varlen_kvpacked_func": _packed(flash_attn_varlen_func, 1, has_query=True),
}
_PADDING = {each.__name__: each for each in (index_first_axis, pad_input, unpad_input)}


def give_flash_attention() -> None:
    """Let models of transformers before 4.53 have flash-attn, which they look for when they are imported."""
    given = {**_FUNCTIONS, **_PADDING, "_flash_supports_window_size": True}
    with contextlib.suppress(ImportError):
        from transformers.modeling_flash_attention_utils import _flash_attention_forward

        given["_flash_attention_forward"] = _flash_attention_forward
    for module in [each for name, each in sys.modules.items() if name.startswith("transformers.")]:
        asks = {"is_flash_attn_2_available", "is_flash_attn_available"} & vars(module).keys()  # the second since 4.51
        if asks:
            vars(module).update(dict.fromkeys(asks, lambda: True))
            vars(module).update({key: each for key, each in given.items() if vars(module).get(key) is None})


def memory_efficient_attention(
    query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, *_: Any, **__: Any
) -> Any:
    """Xformers' attention over tensors of batch, sequence, (groups,) heads and head dimension."""
    shape = query.shape
    if query.dim() == 3:  # one head
        query, key, value = (each.unsqueeze(2) for each in (query, key, value))
    elif query.dim() == 5:
        query, key, value = (each.flatten(2, 3) for each in (query, key, value))
    bias = getattr(attn_bias, "_bias", attn_bias)  # of LowerTriangularMaskWithTensorBias
    bias = bias if isinstance(bias, torch.Tensor) else None
    if bias is not None and bias.dim() == 3:
        bias = bias.unflatten(0, (query.shape[0], -1))
    if bias is None and query.dtype in LOW_PRECISION:
        output = flash_attn_func(query, key, value)
    else:
        heads = (each.transpose(1, 2) for each in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(*heads, bias, p).transpose(1, 2)
    return output.reshape(*shape[:-1], value.shape[-1])


def memory_efficient_attention_forward_requires_grad(query: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Xformers' attention, and the log-sum-exp of its scores."""
    batch, tokens, *heads = query.shape[:-1]
    output = memory_efficient_attention(query, *args, **kwargs)
    return output, query.new_empty((batch, *heads, tokens), dtype=torch.float32)


_XFORMERS = {
    each.__name__: each for each in (memory_efficient_attention, memory_efficient_attention_forward_requires_grad)
}
_XFORMERS["memory_efficient_attention_forward"] = memory_efficient_attention


class _FlashAttention(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a stand-in for flash-attn where a program that has no other way needs it and it is not installed."""

    def __init__(self, add_doubt: Callable[[str], None]) -> None:
        self._add_doubt = add_doubt

    def find_spec(self, name: str, *_: Any) -> Any:
        finder = sys._getframe(1)
        if name not in _MODULES or goes_on_without(finder, program_frames(finder)):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name == _FLASH)

    def exec_module(self, module: ModuleType) -> None:
        self._add_doubt("flash-attn is not installed here: its attention is taken for torch's flash attention")
        module.__version__ = "2.8.3"  # type: ignore[attr-defined]
        module.flash_attn_gpu = None  # type: ignore[attr-defined] # xformers looks for it
        vars(module).update(_PADDING if module.__name__ == _MODULES[2] else _FUNCTIONS)


def change_attention(gpus: FakeGpus) -> None:
    """Let flash-attn, xformers and torch's flexible attention run on fake GPUs, once the program imports them."""
    after_import(_MODULES[1], lambda module: vars(module).update(_FUNCTIONS))
    after_import("xformers.ops.fmha", lambda module: vars(module).update(_XFORMERS))
    after_import("torch._higher_order_ops.flex_attention", _change_flexible)
    sys.meta_path.append(_FlashAttention(gpus.doubts.add))


def _change_flexible(module: ModuleType) -> None:
    """Give ``flex_attention`` what its compiled kernel returns, or, where nothing is compiled, all scores.

    Source: torch 2.13, ``_higher_order_ops/flex_attention.py`` (``flex_attention_fake_impl``, and ``math_attention``,
    which widens the scores and keeps them beside those before) and ``_inductor/kernel/flex``.
    """
    operator: Any = module.flex_attention
    backward: Any = module.flex_attention_backward
    has_most = len(inspect.signature(module.FlexAttentionAutogradOp.backward).parameters) > 3

    def scores(gpus: FakeGpus, query: Any, key: Any, count: int) -> None:
        if not gpus.compiles:
            shape = (*query.shape[:-1], key.shape[-2])
            _ = [query.new_empty(shape, dtype=torch.float32) for _ in range(count)]

    @operator.py_impl(FakeGpus)  # type: ignore[untyped-decorator]
    def forward(gpus: FakeGpus, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        with gpus:
            scores(gpus, query, key, 3)
            rows = query.shape[:-1]
            output = (
                torch.empty_like(query)
                if value.shape[-1] == query.shape[-1]
                else query.new_empty((*rows, value.shape[-1]))
            )
            sums = query.new_empty(rows, dtype=torch.float32)
            return (output, sums, query.new_empty((0,), dtype=torch.float32))[: 2 + has_most]

    @backward.py_impl(FakeGpus)  # type: ignore[untyped-decorator]
    def gradients(gpus: FakeGpus, query: Any, key: Any, value: Any, *others: Any, **_: Any) -> tuple[Any, ...]:
        with gpus:
            scores(gpus, query, key, 4)
            products = query.new_empty(query.shape[:-1], dtype=torch.float32)  # of outputs and their gradients
            found = [torch.empty_like(each) for each in (query, key, value)]
            del products
            captured = tuple(torch.zeros_like(each) if each.requires_grad else None for each in others[-2])
            return (*found, captured)
