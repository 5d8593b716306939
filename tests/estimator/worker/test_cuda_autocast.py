"""The imitated autocast compared with CUDA's own rules, which every build of torch contains.

Fake CUDA tensors need no GPU as long as no gradient is computed.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vramtop.estimator.worker.rehearsal import cuda_autocast as rules
from vramtop.estimator.worker.rehearsal.cuda_kernels import cuda_kernels

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
OTHER_RULES = {"binary_cross_entropy", "_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose"}
"""Rules that are not imitated: an error, and kernels that no model calls by their names."""
LISTS = {
    "LOWER_PRECISION_FP": rules.TO_LOW_PRECISION,
    "FP32": rules.TO_FP32,
    "FP32_SET_OPT_DTYPE": rules.FP32_RESULT,
    "PROMOTE": rules.TO_WIDEST,
}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

Make = Callable[..., torch.Tensor]
CALLS: dict[str, Callable[[Make, torch.dtype], Any]] = {
    "linear": lambda new, low: functional.linear(new(4, 8), new(8, 8), new(8)),
    "linear of low": lambda new, low: functional.linear(new(4, 8, low), new(8, 8)),
    "addmm": lambda new, low: torch.addmm(new(8), new(4, 8), new(8, 8)),
    "einsum": lambda new, low: torch.einsum("ij,kj->ik", new(4, 8), new(6, 8, low)),
    "conv2d same": lambda new, low: functional.conv2d(new(2, 4, 8, 8), new(8, 4, 3, 3), padding="same"),
    "layer norm": lambda new, low: functional.layer_norm(new(4, 8, low), (8,), new(8), new(8)),
    "layer norm of fp32": lambda new, low: functional.layer_norm(new(4, 8), (8,), new(8, low), new(8)),
    "softmax": lambda new, low: functional.softmax(new(4, 8, low), -1),
    "softmax to fp32": lambda new, low: functional.softmax(new(4, 8, low), -1, dtype=FP32).to(low),
    "softmax to low": lambda new, low: functional.softmax(new(4, 8), -1, dtype=low),
    "sum": lambda new, low: (new(4, 8, low).sum(), new(4, 8, low).sum(-1), new(4, 8, low).sum(-1, dtype=low)),
    "sum of whole numbers": lambda new, low: new(4, torch.int64).sum(),
    "mean": lambda new, low: (new(4, 8, low).mean(), new(4, 8, low).mean(-1)),
    "cumsum": lambda new, low: (new(4, 8, low).cumsum(-1), new(4, torch.int64).cumsum(0)),
    "norms": lambda new, low: (new(4, 8, low).norm(), new(4, 8, low).norm(dim=-1), torch.linalg.norm(new(4, 8, low))),
    "old norms": lambda new, low: (
        torch.norm_except_dim(new(4, 8, low)),
        torch.ops.aten.norm.Scalar(new(4, 8, low), 2),
    ),
    "powers": lambda new, low: (new(4, low) ** 2, 2 ** new(4, low), new(4, low) ** new(4, low)),
    "concatenation": lambda new, low: (torch.cat([new(4, low), new(4)]), torch.stack([new(4, low), new(4)])),
    "promotion": lambda new, low: torch.addcmul(new(4, low), new(4), new(4, low)),
    "scatter": lambda new, low: torch.zeros_like(new(8)).scatter_add(0, new(4, torch.int64), new(4, low)),
    "putting": lambda new, low: new(8, 4).index_put((new(2, torch.int64),), new(2, 4, low), accumulate=True),
    "cross entropy": lambda new, low: functional.cross_entropy(new(4, 8, low), new(4, torch.int64)),
    "bce": lambda new, low: functional.binary_cross_entropy_with_logits(new(4, low), new(4)),
    "kl": lambda new, low: functional.kl_div(new(4, 8, low), new(4, 8), reduction="batchmean"),
    "dropout": lambda new, low: functional.dropout(new(4, 8, low), 0.1),
    "padding": lambda new, low: functional.pad(new(2, 4, 8, low), (1, 1), mode="replicate"),
    "upsampling": lambda new, low: functional.interpolate(new(2, 4, 8, low), scale_factor=2.0),
}


class Log(TorchDispatchMode):
    """Log of operations, with the dtypes and shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if tensors:
            self.lines.append(f"{func}: {', '.join(f'{tensor.dtype}{list(tensor.shape)}' for tensor in tensors)}")
        return result


@contextlib.contextmanager
def autocast(device: str, low: torch.dtype) -> Iterator[None]:
    """``torch.autocast`` for a device that may not exist."""
    torch.set_autocast_dtype(device, low)
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()


def log_of(call: Callable[[Make, torch.dtype], Any], device: str, low: torch.dtype) -> list[str]:
    mode = FakeTensorMode()

    def new(*shape_and_type: Any) -> torch.Tensor:
        dtype = shape_and_type[-1] if isinstance(shape_and_type[-1], torch.dtype) else FP32
        shape = [size for size in shape_and_type if isinstance(size, int)]
        return FakeTensor(mode, torch.empty(shape, dtype=dtype, device="meta"), torch.device(device))

    with torch.no_grad(), mode, autocast(torch.device(device).type, low), Log() as log:
        call(new, low)
    return log.lines


@pytest.mark.parametrize("low", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CALLS)
def test_computes_what_cuda_would(name: str, low: torch.dtype) -> None:
    on_cuda = log_of(CALLS[name], "cuda:0", low)

    with cuda_kernels(), rules.cuda_autocast():
        assert log_of(CALLS[name], "cpu", low) == on_cuda


def test_rms_norm_returns_fp32() -> None:
    """Only the result is compared: builds for CUDA compute it in one kernel."""
    with rules.cuda_autocast():
        lines = log_of(lambda new, low: functional.rms_norm(new(4, 8, low), (8,), new(8)), "cpu", BF16)
    assert "_to_copy.default: torch.float32[4, 8]" in lines[2]
    assert lines[-1].endswith("torch.float32[4, 8]")


def test_lists_are_those_of_the_installed_torch() -> None:
    macros = dict(re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*\n)", HEADER.read_text()))
    for macro, listed in LISTS.items():
        found = [".".join(part.split(", ")) for part in re.findall(r"_\(([^)]+)\)", macros[macro])]
        assert {name for name in found if "Dimname" not in name and "dimname" not in name} == set(listed), macro


def test_every_rule_of_cuda_is_known() -> None:
    there = {name for name in rules.operations_with_kernel(rules.CUDA_KEY) if "name" not in name}
    assert there - OTHER_RULES == {name for names in LISTS.values() for name in names} | set(rules.FP32_NORMS)


def test_cpu_rules_are_restored_afterwards() -> None:
    before = log_of(CALLS["layer norm"], "cpu", BF16)
    with rules.cuda_autocast():
        assert log_of(CALLS["layer norm"], "cpu", BF16) != before
    assert log_of(CALLS["layer norm"], "cpu", BF16) == before
