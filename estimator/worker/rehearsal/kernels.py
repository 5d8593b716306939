"""Tensors that CUDA's libraries keep and take beyond those that fake tensors of torch's operators show."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

_ATEN = torch.ops.aten
_PADDED_BYTES = 16
_LOSSES = {
    _ATEN.binary_cross_entropy.default: 3,
    _ATEN.mse_loss.default: 2,
    _ATEN.smooth_l1_loss.default: 2,
    _ATEN.soft_margin_loss.default: 2,
}
"""Losses that are reduced into the memory of their elements, and which argument says how.

Source: torch, ``ATen/native/cuda/Loss.cu`` (``loss.resize_as_(loss_reduced)``) and ``ATen/native/Loss.cpp``
(``TORCH_META_FUNC(mse_loss)``: ``maybe_get_output().resize_({})``).
"""


def _per_channel(image: Any, count: int, *_: Any) -> tuple[Any, ...]:
    dtype = torch.promote_types(image.dtype, torch.float32)
    return tuple(image.new_empty((image.shape[1],), dtype=dtype) for _ in range(count))


def _in_order(tensor: Any) -> Any:
    return tensor.contiguous(memory_format=suggest_memory_format(tensor))


def _normalized(image: Any, *others: Any) -> tuple[Any, ...]:
    """Return a batch's norm, and its statistics in training; cuDNN wants tensors in order, and so are its results.

    Source: torch, ``ATen/native/Normalization.cpp`` (``_batch_norm_impl_index``).
    """
    is_training = others[4]
    return torch.empty_like(_in_order(image)), *(each[: None if is_training else 0] for each in _per_channel(image, 2))


def _normalized_backward(gradient: Any, image: Any, weight: Any, *others: Any) -> tuple[Any, ...]:
    tensors = _in_order(gradient), _in_order(image)
    likes = tensors[1], *(_per_channel(image, 1) if weight is None else (weight,)) * 2
    return tuple(torch.empty_like(each) if needed else None for each, needed in zip(likes, others[-1]))  # noqa: B905


def _to_complex(tensor: Any, dims: Any, _: int, onesided: bool) -> Any:
    sizes = list(tensor.shape)
    if onesided:
        sizes[dims[-1]] = sizes[dims[-1]] // 2 + 1
    return _transformed(tensor, sizes, dims, tensor.dtype.to_complex())


def _to_real(tensor: Any, dims: Any, _: int, last: int) -> Any:
    sizes, copy = list(tensor.shape), torch.empty_like(tensor)  # which the library may write into
    sizes[dims[-1]] = last
    return _transformed(copy, sizes, dims[-1:], tensor.dtype.to_real())


def _transformed(tensor: Any, sizes: Any, dims: Any, dtype: Any) -> Any:
    """Return a Fourier transform, whose own dimensions lie innermost; cuFFT's work area is taken to be as large.

    Source: torch, ``ATen/native/cuda/SpectralOps.cpp`` (``_exec_fft``, ``_fft_c2r_cufft``).
    """
    batch = sorted((at for at in range(tensor.dim()) if at not in dims), key=tensor.stride, reverse=True)
    order = [*batch, *dims]
    made = tensor.new_empty([sizes[at] for at in order], dtype=dtype)
    _ = torch.empty_like(made if dtype.is_complex else tensor)
    return made.permute([order.index(at) for at in range(tensor.dim())])


def _attention(query: Any, *others: Any) -> tuple[Any, Any]:
    """Return the attention of ``torch.nn.MultiheadAttention`` without gradients, and its weights where they are asked.

    Source: torch 2.13, ``ATen/native/transformers/cuda/attention.cu`` (``native_multi_head_attention_cuda``).
    """
    key, value, width, heads, of_heads, bias, of_output, output_bias, *settings = others
    mask, gives_weights, is_averaged = (*settings, *(None, True, True)[len(settings) :])[:3]
    if query is key is value and mask is None and not gives_weights and width // heads % 8 == 0:
        found = torch.nn.functional.linear(query, of_heads, bias).unflatten(-1, (3, heads, -1)).transpose(1, 3)
        mixed = torch.nn.functional.scaled_dot_product_attention(*found.unbind(2)).transpose(1, 2).flatten(2)
        return torch.nn.functional.linear(mixed, of_output, output_bias), None
    projected = query.new_empty((*query.shape[:2], 3 * width))
    found = torch.empty_like(projected)  # with the biases, heads first; the mix of values is written over the queries
    del projected
    weights = query.new_empty((query.shape[0], heads, *query.shape[1:2] * 2))
    if mask is not None:
        weights = torch.empty_like(weights)
    if not gives_weights:
        weights = None
    made = torch.nn.functional.linear(torch.empty_like(query), of_output, output_bias)
    return made, weights.sum(1) if gives_weights and is_averaged else weights


def _encoder_layer(source: Any, width: int, heads: int, *others: Any) -> Any:
    """Return the result of ``torch.nn.TransformerEncoderLayer`` without gradients.

    Source: torch 2.13, ``ATen/native/transformers/transformer.cpp`` (``transformer_encoder_layer_forward``).
    """
    is_gelu, is_first, epsilon, *parameters = others[4:]
    first, second = ((width,), *parameters[:2], epsilon), ((width,), *parameters[2:4], epsilon)
    enter, enter_bias, leave, leave_bias, *mask = parameters[4:]
    tensor = torch.layer_norm(source, *first) if is_first else source
    tensor = _attention(tensor, tensor, tensor, width, heads, *others[:4], *(mask[:1] or (None,)), False)[0]
    tensor = before = tensor.add_(source) if is_first else torch.layer_norm(tensor.add_(source), *first)
    if is_first:
        tensor = torch.layer_norm(tensor, *second)
    tensor = torch._addmm_activation(enter_bias, tensor.flatten(0, 1), enter.t(), use_gelu=is_gelu)
    tensor = torch.addmm(leave_bias, tensor, leave.t()).view(source.shape).add_(before)
    return tensor if is_first else torch.layer_norm(tensor, *second)


def _grouped_product(a: Any, b: Any, offs: Any = None, _bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply the groups of two matrices; other dtypes than bf16, which fake tensors refuse, run group by group.

    Source: torch 2.13, ``ATen/native/GroupedMMUtils.h`` (``create_grouped_gemm_output_tensor``: padded rows) and
    ``ATen/native/cuda/GroupedBlas.cpp`` (``_grouped_mm_fallback``: each group is written into the result).
    """
    rows = (a.shape[0],) if a.dim() != b.dim() and a.dim() == 2 else a.shape[-2:-1]
    groups = (offs.shape[0],) if a.dim() == b.dim() == 2 else a.shape[:1] if a.dim() == b.dim() else ()
    dtype = out_dtype or a.dtype
    aligned = _PADDED_BYTES // dtype.itemsize
    padded = -(-b.shape[-1] // aligned) * aligned
    return a.new_empty((*groups, *rows, padded), dtype=dtype)[..., : b.shape[-1]]


def _aligned_backward(_gradient: Any, scores: Any, *others: Any, **_: Any) -> Any:
    """Return the gradient of CTC's scores, for which CUDA goes through all alignments backwards, too.

    Source: torch, ``ATen/native/cuda/LossCTC.cu`` (``ctc_loss_backward_gpu_template``, ``log_beta``).
    """
    forward = next(each for each in others if isinstance(each, torch.Tensor) and each.dim() == scores.dim())
    made = torch.empty_like(forward), torch.empty_like(scores)
    return made[1]


def _loss(at: int, tensor: Any, target: Any, *others: Any, **_: Any) -> Any:
    loss = tensor.new_empty(torch.broadcast_shapes(tensor.shape, target.shape))
    reduction = others[at - 2] if len(others) > at - 2 else 1
    return loss.resize_(()) if reduction else loss


_KERNELS = {
    # torch before 2.8 has no product of groups
    getattr(getattr(_ATEN, "_grouped_mm", None), "default", None): _grouped_product,
    **{getattr(_ATEN._ctc_loss_backward, name): _aligned_backward for name in _ATEN._ctc_loss_backward.overloads()},
    **{loss: functools.partial(_loss, at) for loss, at in _LOSSES.items()},
    _ATEN.histc.default: lambda tensor, bins=100, *_, **__: tensor.new_empty(
        (bins,)
    ),  # which CUDA has for integers too
    _ATEN._native_multi_head_attention.default: _attention,
    _ATEN._transformer_encoder_layer_fwd.default: _encoder_layer,
    _ATEN._nested_tensor_from_mask_left_aligned.default: lambda _, mask: not (mask[:, 1:] & ~mask[:, :-1]).any(),
    _ATEN._nested_tensor_from_mask.default: lambda tensor, mask, *_: tensor[mask][None],
    _ATEN.to_padded_tensor.default: lambda tensor, _, shape: tensor.new_empty(shape),
    _ATEN._fft_r2c.default: _to_complex,
    _ATEN._fft_c2r.default: _to_real,
    _ATEN._fft_c2c.default: lambda tensor, dims, *_: _transformed(tensor, tensor.shape, dims, tensor.dtype),
    _ATEN.native_batch_norm.default: _normalized,
    _ATEN.native_batch_norm_backward.default: _normalized_backward,
    _ATEN.batch_norm_stats.default: lambda image, *_: _per_channel(image, 2),
    _ATEN.batch_norm_gather_stats_with_counts.default: lambda image, *_: _per_channel(image, 2),
    _ATEN.batch_norm_elemt.default: lambda image, *_: torch.empty_like(image),
    _ATEN.batch_norm_backward_reduce.default: lambda _, image, *__: _per_channel(image, 4),
    _ATEN.batch_norm_backward_elemt.default: lambda _, image, *__: torch.empty_like(image),
}
"""Attention without gradients, which packs padded sequences behind each other, Fourier transforms, and what
``SyncBatchNorm`` runs (``ATen/native/cuda/Normalization.cu``; a CPU has no kernels)."""

kernel_of = _KERNELS.get
"""Returns a function that allocates what an operator's kernel for CUDA does; None: fake tensors show it."""
