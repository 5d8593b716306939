"""Tensors that CUDA's libraries keep and take beyond those that fake tensors of torch's operators show."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATEN = torch.ops.aten
_GROUPED = getattr(getattr(_ATEN, "_grouped_mm", None), "default", _ATEN)
"""The product of groups; torch before 2.8 has none."""
_ALIGNED = {getattr(_ATEN._ctc_loss_backward, name) for name in _ATEN._ctc_loss_backward.overloads()}
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


def kernel_of(func: Any) -> Any:
    """Return a function that allocates what an operator's kernel for CUDA does; None: fake tensors show it."""
    if func is _ATEN.histc.default:  # which CUDA has for integers too
        return lambda tensor, bins=100, *_, **__: tensor.new_empty((bins,))
    if func is _GROUPED:
        return _grouped_product
    if func in _ALIGNED:
        return _aligned_backward
    other = _OTHERS.get(func)
    if other is not None:
        return other
    at = _LOSSES.get(func)
    return None if at is None else lambda *args, **_: _loss(args[0], args[1], args[at] if len(args) > at else 1)


def _per_channel(image: Any, count: int, *_: Any) -> tuple[Any, ...]:
    dtype = torch.promote_types(image.dtype, torch.float32)
    return tuple(image.new_empty((image.shape[1],), dtype=dtype) for _ in range(count))


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


_OTHERS = {
    _ATEN._fft_r2c.default: _to_complex,
    _ATEN._fft_c2r.default: _to_real,
    _ATEN._fft_c2c.default: lambda tensor, dims, *_: _transformed(tensor, tensor.shape, dims, tensor.dtype),
    _ATEN.batch_norm_stats.default: lambda image, *_: _per_channel(image, 2),
    _ATEN.batch_norm_gather_stats_with_counts.default: lambda image, *_: _per_channel(image, 2),
    _ATEN.batch_norm_elemt.default: lambda image, *_: torch.empty_like(image),
    _ATEN.batch_norm_backward_reduce.default: lambda _, image, *__: _per_channel(image, 4),
    _ATEN.batch_norm_backward_elemt.default: lambda _, image, *__: torch.empty_like(image),
}
"""Fourier transforms, and what ``SyncBatchNorm`` runs (``ATen/native/cuda/Normalization.cu``; a CPU has no kernels)."""


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


def _loss(tensor: Any, target: Any, reduction: int) -> Any:
    loss = tensor.new_empty(torch.broadcast_shapes(tensor.shape, target.shape))
    return loss.resize_(()) if reduction else loss


# cuDNN's recurrent layers, as one operator each.
#
# ``ATen/native/cudnn/RNN.cpp`` (``_cudnn_rnn``, ``_cudnn_rnn_backward``) makes the tensors. How large cuDNN's reserve
# and workspace are is not published, so the rule is inferred: pytorch's issue 2895 tells reserves of 736,000,000 bytes
# (LSTM) and 864,000,000 (GRU) and workspaces of 17,730,560 and 13,169,920 with cuDNN of 2017. With four layers of 320
# units, which its counts of parameters suggest, the reserves are 23 and 27 times a tensor of the same tokens and units:
# for each layer and direction, five tensors of an LSTM (its gates and cells) and six of a GRU, and one between layers;
# the workspaces are the weights without biases, and 11 and 8 tensors of a step for each layer. Layers without gates
# are a guess; masks of dropout between layers are not counted. The range is wide for that.


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_OF_A_STEP = {"lstm": 11, "gru": 8, "rnn_tanh": 2, "rnn_relu": 2}


_SINCE_BF16 = "2.11"
"""torch whose builds for CUDA have cuDNN 9.13 or newer, which takes bf16 too, from compute capability 8.0 on.

Source: torch, ``CUDAHooks::supportsBFloat16RNNWithCuDNN``.
"""


def recurrent_layers(is_on_gpu: Any, doubts: Any, *, is_ampere: bool = True) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for the functions behind ``torch.nn.LSTM`` and others, for tensors on a GPU.

    Args:
        is_on_gpu: says of a tensor whether it is there.
        doubts: what is not known is added to it.
        is_ampere: the GPU has compute capability 8.0 or more.
    """
    has_bf16 = is_ampere and torch.__version__ >= _SINCE_BF16
    dtypes = {*torch.backends.cudnn.CUDNN_TENSOR_DTYPES, *([torch.bfloat16] if has_bf16 else [])}
    for name in _GATES:
        original = getattr(torch._VF, name)
        yield torch._VF, name, functools.partial(_recurrent, name, original, is_on_gpu, dtypes, doubts)
    # weights in one buffer take what they take in many
    yield torch.backends.cudnn, "is_acceptable", lambda tensor: False  # noqa: ARG005 - torch's names


def _recurrent(  # noqa: PLR0917 - torch's own come last
    name: str, original: Any, is_on_gpu: Any, dtypes: Any, doubts: Any, tensor: Any, *args: Any
) -> Any:
    if not is_on_gpu(tensor):
        return original(tensor, *args)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else tensor.dtype
    if not torch.backends.cudnn.enabled or dtype not in dtypes:
        doubts.add("recurrent layers without cuDNN run as single steps", "recurrent")
        return original(tensor, *args)
    sentence = "memory kept by recurrent layers follows a rule inferred from cuDNN of 2017; cuDNN publishes none"
    doubts.add(sentence, "recurrent")
    is_packed = isinstance(args[0], torch.Tensor) and not args[0].is_floating_point()  # how many go on, step by step
    states, weights, _, layers, _, is_training, both, *is_batch_first = args[1:] if is_packed else args
    states = states if isinstance(states, (list, tuple)) else (states,)
    if dtype != tensor.dtype:
        tensor, states = tensor.to(dtype), [each.to(dtype) for each in states]
        weights = [each.to(dtype) for each in weights]
    settings = name, layers * (1 + both), both, is_packed or not is_batch_first[0], is_training
    output, *last = _CudnnLayer.apply(settings, tensor, len(states), *states, *weights)
    return (output, *last)


class _CudnnLayer(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """All layers of a recurrent network: saves inputs, weights, output and cuDNN's reserve."""

    @staticmethod
    def forward(ctx: Any, settings: Any, tensor: Any, count: int, *others: Any) -> Any:
        name, stacked, both, steps_first, is_training = settings
        states, weights = others[:count], others[count:]
        x = tensor if steps_first else tensor.transpose(0, 1).contiguous()
        tokens, units = x.shape[:-1], weights[0].shape[0] // _GATES[name]
        output = x.new_zeros((*tokens, states[0].shape[-1] * (1 + both)))
        last = [torch.zeros_like(each) for each in states]
        kept = _KEPT[name] * stacked + max(0, stacked - 1 - both)
        reserve = x.new_empty((tokens.numel() * units * kept if is_training else 0,))
        matrices = sum(each.numel() for each in weights if each.dim() > 1)
        ctx.workspace = matrices + _OF_A_STEP[name] * stacked * states[0].shape[1] * units
        x.new_empty(ctx.workspace)
        ctx.save_for_backward(tensor, output, reserve, *others)
        ctx.settings = steps_first, count
        return (output if steps_first else output.transpose(0, 1), *last)

    @staticmethod
    def backward(ctx: Any, gradient: Any, *of_last: Any) -> Any:
        tensor, _output, _reserve, *others = ctx.saved_tensors
        steps_first, count = ctx.settings
        states, weights = others[:count], others[count:]
        x = tensor if steps_first else tensor.transpose(0, 1).contiguous()
        dense = (gradient if steps_first else gradient.transpose(0, 1)).contiguous()
        of_x = torch.zeros_like(x)
        of_states = [torch.zeros_like(each) for each in states]
        work = x.new_empty(ctx.workspace)
        of_weights = [torch.zeros_like(each) for each in weights]
        del work, dense, of_last
        return None, of_x if steps_first else of_x.transpose(0, 1), None, *of_states, *of_weights
