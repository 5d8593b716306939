"""CUDA's autocast rules on CPU tensors: CUDA casts the inputs of other operations than a CPU does.

The lists are the macros ``AT_FORALL_...`` of ``ATen/autocast_mode.h``, which every installed torch contains. The tests
compare them with that header and with the dispatcher's table, and compare each operation with what torch computes on
fake CUDA tensors. Checked with torch 2.12.1 (built for CUDA 13) and 2.13.0 (built for CPUs, where CUDA's rules are
registered too). Operations that a torch version does not have are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .cuda_kernels import LOW_PRECISION


def _split(text: str) -> list[str]:
    return text.split()


TO_LOW_PRECISION = _split(
    "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input"
    " conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm"
    " bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell"
    " rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"
)
"""Operations whose inputs are cast to autocast's dtype."""
TO_FP32 = _split(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar"
    " pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim"
    " nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d"
    " hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss"
    " multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits"
    " dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d"
    " _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d"
    " _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
"""Operations whose inputs are cast to fp32."""
FP32_RESULT = _split(
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm"
    " linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
"""Operations that return fp32 unless the caller asks for another dtype."""
FP32_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Norms that are computed by the overload with a dtype argument, in fp32."""
TO_WIDEST = _split("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
"""Operations whose inputs are cast to the widest dtype among them."""
CPU_KEY, CUDA_KEY = "AutocastCPU", "AutocastCUDA"


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """Make ``torch.autocast("cpu")`` cast what ``torch.autocast("cuda")`` would."""
    library = torch.library.Library("aten", "IMPL", CPU_KEY)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in _cast_on_cpu_only():
                library.impl(name, torch.library.fallthrough_kernel)
            for names, make in (
                ([name for name in TO_LOW_PRECISION if not _has_kernel(name, CPU_KEY)], _to_low_precision),
                (TO_FP32, _to_fp32),
                (FP32_RESULT, _fp32_result),
                (FP32_NORMS, _fp32_norm),
                (TO_WIDEST, _to_widest),
            ):
                for name in names:
                    if _has_kernel(name, CUDA_KEY):
                        library.impl(name, make(_operation(name)))
        yield
    finally:
        library._destroy()


@functools.cache
def _cast_on_cpu_only() -> frozenset[str]:
    """Return the operations that autocast knows on a CPU only; first called while torch's own kernels are in place."""
    return frozenset(operations_with_kernel(CPU_KEY) - operations_with_kernel(CUDA_KEY))


def operations_with_kernel(key: str) -> set[str]:
    """Return ATen's operations (``sum.dim_IntList``) that have a kernel of their own under a dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name[len("aten::") :] for name in names if name.startswith("aten::")}


def _has_kernel(name: str, key: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))
    except RuntimeError:  # this torch version has no such operation
        return False


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _casting(types: Callable[[list[Any]], tuple[Any, Any]]) -> Callable[[Any], Callable[..., Any]]:
    """Return what makes an operation cast its inputs to a dtype from others, which are told from all of them."""

    def make(operation: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            given = [leaf for arg in (*args, *kwargs.values()) for leaf in (arg if isinstance(arg, list) else [arg])]
            dtype, from_types = types(given)

            def cast(value: Any) -> Any:
                if isinstance(value, (list, tuple)):
                    return [cast(item) for item in value]
                return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in from_types else value

            kwargs = {name: cast(value) for name, value in kwargs.items()}
            cast_args = [cast(value) for value in reversed(args)][::-1]  # in the order in which C++ evaluates arguments
            with _without_autocast():
                return operation(*cast_args, **kwargs)

        return run

    return make


def _widest(given: list[Any]) -> tuple[Any, Any]:
    is_wide = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 for leaf in given)
    return torch.float32, LOW_PRECISION if is_wide else ()


_to_low_precision = _casting(lambda _: (torch.get_autocast_dtype("cpu"), (torch.float32, *LOW_PRECISION)))
_to_fp32 = _casting(lambda _: (torch.float32, LOW_PRECISION))
_to_widest = _casting(_widest)


def _fp32_result(operation: Any) -> Callable[..., Any]:
    at = [argument.name for argument in operation._schema.arguments].index("dtype")

    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype") or (args[at] if len(args) > at else None)
        if not given and args[0].dtype in LOW_PRECISION:
            args = args[:at]
            kwargs["dtype"] = torch.float32
        with _without_autocast():
            return operation(*args, **kwargs)

    return run


def _fp32_norm(operation: Any) -> Callable[..., Any]:
    with_dtype = _operation(FP32_NORMS[f"norm.{operation._overloadname}"])
    wants = [argument.name for argument in operation._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(wants, args))  # noqa: B905 - not in Python 3.9
        given.update(kwargs)
        if args[0].dtype not in (torch.float32, *LOW_PRECISION):
            with _without_autocast():
                return operation(*args, **kwargs)
        given.setdefault("p", 2)
        if "dim" in wants:
            given.setdefault("keepdim", False)
        with _without_autocast():
            return with_dtype(**given, dtype=torch.float32)

    return run


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))
