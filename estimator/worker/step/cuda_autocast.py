"""Autocast as CUDA does it: a CPU lowers, widens and promotes other operations.

The lists are the macros ``AT_FORALL_...`` of ``ATen/autocast_mode.h``, of which a copy lies in every installed torch.
The tests compare them with that header and with the dispatcher's table, and what is computed with what fake CUDA
tensors make torch compute, operation by operation: done with 2.12.1 (built for CUDA 13) and 2.13.0 (built for CPUs,
where CUDA's rules are registered too). Of a torch that lacks some operations the others are taken.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _names(text: str) -> list[str]:
    return text.split()


LOWERED = _names(
    "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input"
    " conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm"
    " bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell"
    " rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"
)
"""Inputs are cast to autocast's type."""
WIDENED = _names(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar"
    " pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim"
    " nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d"
    " hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss"
    " multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits"
    " dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d"
    " _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d"
    " _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
"""Inputs are cast to fp32."""
WIDE_RESULT = _names(
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm"
    " linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
"""Asked for an fp32 result, where the caller asks for none."""
WIDE_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Handed over to the overload that takes the result's type last: fp32."""
PROMOTED = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
"""Inputs are cast to the widest type among them."""
LOW = (torch.float16, torch.bfloat16)
ON_CPU, ON_CUDA = "AutocastCPU", "AutocastCUDA"


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """``torch.autocast("cpu")`` casts what ``torch.autocast("cuda")`` would while this is open."""
    library = torch.library.Library("aten", "IMPL", ON_CPU)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in operations_with(ON_CPU) - operations_with(ON_CUDA):
                library.impl(name, torch.library.fallthrough_kernel)
            for names, make in (
                ([name for name in LOWERED if not _has(name, ON_CPU)], _lowered),
                (WIDENED, _widened),
                (WIDE_RESULT, _with_wide_result),
                (WIDE_NORMS, _wide_norm),
                (PROMOTED, _promoted),
            ):
                for name in names:
                    if _has(name, ON_CUDA):
                        library.impl(name, make(_operation(name)))
        yield
    finally:
        library._destroy()


def operations_with(key: str) -> set[str]:
    """ATen's operations (``sum.dim_IntList``) that have a rule of their own under a dispatch key."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name[len("aten::") :] for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}


def _has(name: str, key: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))
    except RuntimeError:  # this torch has no such operation
        return False


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _lowered(operation: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return _on_cast(operation, torch.get_autocast_dtype("cpu"), (torch.float32, *LOW), args, kwargs)

    return run


def _widened(operation: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return _on_cast(operation, torch.float32, LOW, args, kwargs)

    return run


def _promoted(operation: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = [leaf for arg in (*args, *kwargs.values()) for leaf in (arg if isinstance(arg, list) else [arg])]
        wide = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 for leaf in given)
        return _on_cast(operation, torch.float32, LOW if wide else (), args, kwargs)

    return run


def _with_wide_result(operation: Any) -> Callable[..., Any]:
    arguments = [argument.name for argument in operation._schema.arguments]
    at = arguments.index("dtype")

    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype") or (args[at] if len(args) > at else None)
        if not given and args[0].dtype in LOW:
            args = args[:at]
            kwargs["dtype"] = torch.float32
        with _past_autocast():
            return operation(*args, **kwargs)

    return run


def _wide_norm(operation: Any) -> Callable[..., Any]:
    with_dtype = _operation(WIDE_NORMS[f"norm.{operation._overloadname}"])
    wants = [argument.name for argument in operation._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(wants, args))  # noqa: B905 - not in Python 3.9
        given.update(kwargs)
        if args[0].dtype not in (torch.float32, *LOW):
            with _past_autocast():
                return operation(*args, **kwargs)
        given.setdefault("p", 2)
        if "dim" in wants:
            given.setdefault("keepdim", False)
        with _past_autocast():
            return with_dtype(**given, dtype=torch.float32)

    return run


def _on_cast(operation: Any, dtype: Any, from_types: Any, args: Any, kwargs: Any) -> Any:
    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [cast(item) for item in value]
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in from_types else value

    cast_kwargs = {name: cast(value) for name, value in kwargs.items()}
    cast_args = [cast(value) for value in reversed(args)][::-1]  # in the order in which C++ evaluates them
    with _past_autocast():
        return operation(*cast_args, **cast_kwargs)


def _past_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))
