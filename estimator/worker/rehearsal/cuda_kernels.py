"""Kernels that make fake CPU tensors take the memory that CUDA's kernels take."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ..replaced import replaced

# Fake tensors on "cuda" would need no imitation, but autograd's engine asks for a real device. The tensors that each
# kernel saves for its backward pass and allocates during it come from ATen's ``native/Dropout.cpp``,
# ``native/SoftMax.cpp``, ``native/RNN.cpp``, ``native/cuda/RNN.cu``, ``native/cuda/Embedding.cu``,
# ``EmbeddingBackwardKernel.cu``, ``layer_norm_kernel.cu`` and, under ``native/transformers/cuda``, ``sdp_utils.cpp``,
# ``attention.cu``, ``attention_backward.cu``, ``flash_attn/flash_api.cpp`` and
# ``mem_eff_attention/kernel_backward.h``. The tests compare saved and returned tensors with torch's own kernels on
# tensors without data (torch 2.12.1 for CUDA 13, and 2.13.0); those do not show a kernel's temporary memory.
#
# A known difference in whole forward passes: the statistics of ``layer_norm`` of 16-bit inputs (fp32 on CUDA, four
# bytes more per token).
#
# The attention kernel is the one that CUDA chooses from sm_80 on. With cuDNN 9.15.1 or newer, torch 2.11 and newer
# prefer cuDNN's kernel on Hopper and Blackwell: it saves the same tensors; its temporary memory is not published and
# assumed to be the same. Legend: b batch, h heads, s sequence, d head dimension.


MAX_FLASH_HEAD_DIM = 256
"""Largest head dimension of flash attention."""
LOW_PRECISION = (torch.float16, torch.bfloat16)
BIAS_ALIGNMENT = 16
"""Elements: the memory-efficient kernel needs a mask whose last dimension is padded to a multiple of it."""
MAX_TOKENS_WITHOUT_PARTIAL_SUMS = 3072
"""Up to this many tokens, an embedding's gradient is computed without partial sums."""
TOKENS_PER_PARTIAL_SUM = 10
"""Tokens of the same row that share a partial sum."""
FLASH_NAME = "vramtop_fused_attention"
"""Name under which flash attention is registered; under its own, transformers would ask for its package."""


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    """Make attention, dropout, softmax, ``rms_norm``, recurrent cells and embeddings allocate as CUDA's kernels do."""
    functional = torch.nn.functional
    attention = "scaled_dot_product_attention"
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            composite = "CompositeImplicitAutograd"
            library.impl("softmax.int", _fp32_softmax(torch.ops.aten._softmax.default), composite)
            library.impl("log_softmax.int", _fp32_softmax(torch.ops.aten._log_softmax.default), composite)
            library.impl("embedding_dense_backward", _embedding_backward, "AutogradCPU")
            for name, function in _COMPOSITES.items():
                library.impl(name, function, composite)
            library.impl("_thnn_fused_gru_cell", _gru_kernel, "Meta")  # torch has no rule for its shapes
            library.impl("_thnn_fused_gru_cell_backward", _gru_backward_kernel, "Meta")
            if hasattr(torch.ops.aten, "_fused_rms_norm_backward"):  # since torch 2.9 CUDA has a kernel, a CPU none
                library.impl("_fused_rms_norm", _rms_norm, "CPU")
                library.impl("_fused_rms_norm_backward", _rms_norm_backward, "CPU")
        with replaced((functional, attention, scaled_dot_product_attention), (functional, "dropout", dropout)):
            yield
    finally:
        library._destroy()


def _fp32_softmax(kernel: Any) -> Any:
    """Return a softmax that widens fp16 in its kernel, where a CPU copies its input first."""

    def run(tensor: Any, dim: int, dtype: Any = None) -> Any:
        if tensor.dtype == torch.float16 and dtype == torch.float32:
            return kernel(tensor, dim, True)
        return kernel(tensor if dtype is None else tensor.to(dtype), dim, False)

    return run


def _rms_norm(tensor: Any, shape: Any, weight: Any, epsilon: float | None) -> tuple[Any, Any]:
    """Return normalized rows and the reciprocal of their norms, which the backward pass needs beside the input."""
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    epsilon = torch.finfo(tensor.dtype).eps if epsilon is None else epsilon
    scale = wide.square().mean(_last(shape), keepdim=True).add_(epsilon).rsqrt_()
    normalized = wide * scale if weight is None else wide * scale * weight
    return normalized.to(tensor.dtype).contiguous(), scale


def _rms_norm_backward(gradient: Any, tensor: Any, shape: Any, *others: Any) -> tuple[Any, Any]:
    scale, weight, wanted = others
    normalized, gradient = tensor.to(scale.dtype) * scale, gradient.to(scale.dtype)
    scaled = gradient if weight is None else gradient * weight
    of_tensor = scale * (scaled - normalized * (scaled * normalized).mean(_last(shape), keepdim=True))
    of_weight = None
    if wanted[1] and weight is not None:
        of_weight = (gradient * normalized).reshape(-1, *shape).sum(0).to(weight.dtype)
    return of_tensor.to(tensor.dtype) if wanted[0] else None, of_weight


def _lstm_cell(given: Any, state: Any, *weights: Any) -> tuple[Any, Any]:
    """Make one step as CUDA does, whose autograd keeps both products, the gates, and the state before and after."""
    gates, biases = _products(given, state[0], *weights)
    hidden, cell, _ = torch.ops.aten._thnn_fused_lstm_cell.default(*gates, state[1], *biases)
    return hidden, cell


def _gru_cell(given: Any, hidden: Any, *weights: Any) -> Any:
    gates, biases = _products(given, hidden, *weights)
    return torch.ops.aten._thnn_fused_gru_cell.default(*gates, hidden, *biases)[0]


def _pad_sequence(sequences: Any, batch_first: bool = False, padding_value: float = 0.0, *side: str) -> Any:
    longest, (_, *rest) = max(map(len, sequences)), sequences[0].shape
    shape = (len(sequences), longest) if batch_first else (longest, len(sequences))
    made = sequences[0].new_full((*shape, *rest), padding_value)
    for at, each in enumerate(sequences):
        start = longest - len(each) if side == ("left",) else 0
        made.select(int(not batch_first), at).narrow(0, start, len(each)).copy_(each)
    return made


def _pad_packed_sequence(packed: Any, counts: Any, batch_first: bool, value: float, total: int) -> tuple[Any, Any]:
    going_on = counts.tolist()
    made = packed.new_full((max(len(going_on), total), going_on[0], *packed.shape[1:]), value)
    step = start = 0
    for count, steps in itertools.groupby(going_on):
        length = len(list(steps))
        part = packed.narrow(0, start, length * count).view(length, count, *packed.shape[1:])
        made.narrow(0, step, length).narrow(1, 0, count).copy_(part)
        step, start = step + length, start + length * count
    lengths = torch.tensor([sum(each > at for each in going_on) for at in range(going_on[0])], device="cpu")
    return made.transpose(0, 1) if batch_first else made, lengths


def _one_hot(places: Any, count: int = -1) -> Any:
    made = places.new_zeros((*places.shape, int(places.max()) + 1 if count < 0 else count))
    return made.scatter_(-1, places.unsqueeze(-1), 1)


def _sparse_product(a: Any, b: Any) -> Any:
    if a.layout is b.layout is torch.sparse_coo:
        return torch._sparse_sparse_matmul(a, b)
    if a.layout is torch.strided:
        return _sparse_product(b.t(), a.t()).t()
    return torch.ops.aten._sparse_addmm(b.new_zeros((a.shape[0], b.shape[1])), a, b, beta=0)


_COMPOSITES = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "pad_sequence": _pad_sequence,
    "_pad_packed_sequence": _pad_packed_sequence,
    "one_hot": _one_hot,
    "_sparse_mm": _sparse_product,
}
"""Functions that consist of others. In C++ they make tensors on the device that it thinks GPUs are (of
``ATen/native/PackedSequence.cpp``, ``Onehot.cpp`` and ``sparse/SparseTensorMath.cpp``), or other ones than CUDA."""


def _products(given: Any, hidden: Any, *weights: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    of_input, of_hidden, *biases = weights
    if not biases or biases[0] is None:  # torch's rule for shapes wants some
        biases = [given.new_zeros(()).expand(of_hidden.shape[0])] * 2
    return (given.matmul(of_input.t()), hidden.matmul(of_hidden.t())), (biases[0], biases[1])


def _gru_kernel(_of_input: Any, _of_hidden: Any, hidden: Any, *_biases: Any) -> tuple[Any, Any]:
    return torch.empty_like(hidden), hidden.new_empty((hidden.shape[0], 5 * hidden.shape[1]))


def _gru_backward_kernel(gradient: Any, _gates: Any, _has_bias: bool) -> tuple[Any, ...]:
    rows, width = gradient.shape
    shapes = (rows, 3 * width), (rows, 3 * width), (rows, width), (3 * width,), (3 * width,)
    return tuple(gradient.new_empty(each) for each in shapes)


def _last(shape: Any) -> tuple[int, ...]:
    return tuple(range(-len(shape), 0))


def _embedding_backward(gradient: Any, ids: Any, rows: int, *settings: Any) -> Any:
    """Sum the gradients of each row in fp32, with memory for the largest possible number of partial sums."""
    with torch._C._AutoDispatchBelowAutograd():
        gradient = gradient.contiguous()
        result = torch.ops.aten.embedding_dense_backward.default(gradient, ids, rows, *settings)
        tokens = ids.numel()
        if tokens > MAX_TOKENS_WITHOUT_PARTIAL_SUMS:
            sums = tokens // TOKENS_PER_PARTIAL_SUM + min(tokens, rows)
            _order = [torch.empty_like(ids) for _ in range(2)]
            _partial = gradient.new_empty((sums, gradient.shape[-1]), dtype=torch.float32)
        return result


def dropout(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Dropout with a mask of one byte per element, where a CPU keeps one of the tensor's dtype."""
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
    """Attention with the memory of the kernel that CUDA would choose. Shapes (b, h, s, d); torch takes others too.

    Where a program has switched flash and memory-efficient attention off, the scores are written to memory. A GPU with
    compute capability 9.0 or 10.0 may take cuDNN's kernel first (``check_prefer_cudnn_attention`` in sdp_utils.cpp).
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    settings = attn_mask, dropout_p, is_causal, scale, enable_gqa
    if query.dim() != 4:  # only the kernel that writes the scores takes other shapes (``sdp_utils``)
        return _written_attention(query, key, value, *settings)
    kernels = torch.backends.cuda
    by_math, efficient = kernels.math_sdp_enabled(), kernels.mem_efficient_sdp_enabled()
    flash = kernels.flash_sdp_enabled() or not (by_math or efficient)  # else cuDNN's, which keeps the same
    same_heads = query.shape[1] == key.shape[1]
    same_size = query.shape[-1] == value.shape[-1] <= MAX_FLASH_HEAD_DIM
    if flash and query.dtype in LOW_PRECISION and attn_mask is None and same_size and (same_heads or enable_gqa):
        return flash_attention(query, key, value)
    aligned = 16 // query.element_size()
    if efficient and same_heads and query.shape[-1] % aligned == value.shape[-1] % aligned == 0:
        return _MemoryEfficientAttention.apply(query, key, value, _additive_mask(attn_mask, query.dtype))[0]
    # up to torch 2.13 no fused kernel supports grouped-query attention in fp32: the scores are written to memory
    return _written_attention(query, key, value, *settings)


def _written_attention(query: Any, key: Any, value: Any, *settings: Any) -> Any:
    """Attention that writes its scores to memory; dropout keeps a byte for each, as CUDA's own does.

    It widens 16-bit inputs to fp32, and autocast, which cast the inputs, casts nothing inside of it.
    """
    mask, dropout_p, is_causal, scale, enable_gqa = settings
    kept = query.new_ones((*query.shape[:-1], key.shape[-2]), dtype=torch.bool) if dropout_p else None
    grouped = {"enable_gqa": True} if enable_gqa else {}  # since torch 2.5
    with torch.autocast("cpu", enabled=False):
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, kept, scale=scale, **grouped
        )[0]


def jagged_attention(query: Any, key: Any, value: Any, *settings: Any, **named: Any) -> Any:
    """Attention over jagged nested tensors (b, h, ragged, d), whose sequences lie packed behind each other.

    Source: torch 2.13 (``torch/nested/_internal/sdpa.py``), which takes the same two kernels.
    """
    packed = (each.transpose(1, 2).values()[None].transpose(1, 2) for each in (query, key, value))
    output = scaled_dot_product_attention(*packed, *settings, **named)
    return torch.nested.nested_tensor_from_jagged(output.transpose(1, 2)[0], query.offsets()).transpose(1, 2)


def register_flash_attention() -> None:
    """Register flash attention with transformers, which does not need its package then.

    Raises:
        ImportError: this version of transformers has no registry of attention implementations.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(FLASH_NAME, _flash_for_transformers)
    AttentionMaskInterface.register(FLASH_NAME, flash_attention_mask)


def _flash_for_transformers(
    _module: Any, query: Any, key: Any, value: Any, _mask: Any = None, **_settings: Any
) -> tuple[Any, None]:
    if query.dtype not in LOW_PRECISION:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.bfloat16
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    width = value.shape[-1]
    if width < query.shape[-1]:  # latent attention: models pad the values for flash attention (modeling_deepseek_v2)
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
    return flash_attention(query, key, value)[..., :width].transpose(1, 2), None


def flash_attention(query: Any, key: Any, value: Any) -> Any:
    """Flash attention over heads padded to a multiple of eight elements."""
    d = query.shape[-1]
    if d % 8:
        query, key, value = (torch.nn.functional.pad(tensor, (0, -d % 8)) for tensor in (query, key, value))
    return _FlashAttention.apply(query, key, value)[0][..., :d]


def _additive_mask(mask: Any, dtype: Any) -> Any:
    """Return a mask as the memory-efficient kernel reads it: additive, with padded rows."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))
    short = -mask.shape[-1] % BIAS_ALIGNMENT
    return torch.nn.functional.pad(mask, (0, short))[..., : mask.shape[-1]] if short else mask


class _FlashAttention(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Flash attention: saves q, k, v, output, an fp32 log-sum-exp and the random state; returns the latter three."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        output = torch.empty_like(query)
        seed, offset = query.new_empty(2, dtype=torch.int64), query.new_empty((), dtype=torch.int64)
        made = query.new_empty(query.shape[:3], dtype=torch.float32), seed, offset
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


class _MemoryEfficientAttention(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Memory-efficient attention: saves q, k, v, mask, output and an fp32 log-sum-exp; returns the latter two."""

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
        shapes = [[each.shape[at] for at in (0, 2, 1, 3)] for each in (query, key, value)]  # heads after tokens
        result = [query.new_empty(shape).transpose(1, 2) for shape in shapes]
        of_bias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        if query.dtype in LOW_PRECISION:
            delta = query.new_empty((b, h, s), dtype=torch.float32)
        else:  # the fp32 kernel takes this sum as an input
            delta = (dense.float() * output.transpose(1, 2).float()).sum(-1).transpose(-2, -1).contiguous()
        block = 64 if d <= 64 else 128
        total = query.new_empty((b, h, -(-s // block) * block, -(-d // block) * block), dtype=torch.float32)
        del delta, total, dense
        return (*result, of_bias)
