"""Autocast as CUDA does it: a CPU casts fewer operations up to fp32.

The lists are those of torch's documentation of ``torch.amp``, "CUDA Ops that can autocast to float32". Operations
that autocast lowers (matrix products, convolutions, attention) are the same on both.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDENED = (
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "nll_loss",
    "nll_loss_nd",
    "cross_entropy_loss",
    "l1_loss",
    "smooth_l1_loss",
    "cosine_similarity",
    "binary_cross_entropy_with_logits",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
)
"""Inputs are cast to fp32."""
WIDE_RESULT = ["softmax.int", "log_softmax.int", "cumsum", "sum", "sum.dim_IntList"]
"""Asked for an fp32 result, where the caller asks for none."""
LOW = (torch.float16, torch.bfloat16)


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """``torch.autocast("cpu")`` casts what ``torch.autocast("cuda")`` would while this is open."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for names, make in ((WIDENED, _widened), (WIDE_RESULT, _with_wide_result)):
                for name in names:
                    packet, _, overload = name.partition(".")
                    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
                    library.impl(operation, make(operation))
        yield
    finally:
        library._destroy()


def _widened(operation: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _past_autocast():
            return operation(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})

    return run


def _with_wide_result(operation: Any) -> Callable[..., Any]:
    has_dtype_last = operation._schema.arguments[-1].name == "dtype" and not operation._schema.arguments[-1].kwarg_only

    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype") or (has_dtype_last and len(args) == len(operation._schema.arguments) and args[-1])
        if not given and args[0].dtype in LOW:
            kwargs["dtype"] = torch.float32
            args = args[: len(operation._schema.arguments) - 1] if has_dtype_last else args
        with _past_autocast():
            return operation(*args, **kwargs)

    return run


def _past_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in LOW else value
