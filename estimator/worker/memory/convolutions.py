"""Workspaces of cuDNN's convolutions: what they take of torch's caching allocator while they run.

The forward pass, the gradient of the input and that of the weight take one each, once the result exists, and free it
when the call ends; torch sets no limit (torch 2.13, ``ATen/native/cudnn/Conv_v8.cpp``). With ``cudnn.benchmark`` torch
empties its cache at the first call of each key, after it has tried the plans in whatever memory is free (pytorch's
issue 16655).

How large a workspace is depends on cuDNN's plan, which is published nowhere. Tensor cores want channels last, so cuDNN
copies the tensors of a convolution in NCHW order (pytorch's issue 81940 shows ``nchwToNhwc``, a TF32 kernel and
``nhwcToNchw``). Why the gradient of the weight takes more than these copies is not known. The factors are
**empirical**: with them the replay reserves what timm's models were measured to take on an A100, in fp32 with TF32
(arXiv 2602.17817): in nine of ten runs, from ``LOW_SHARE`` times what the low factors give to ``HIGH_SHARE`` times what
the high ones give. ``docs/explanation/accuracy.md`` has the figures.

In 16 bits, without TF32, and for convolutions that those models do not have, nothing was measured: one default plan of
a V100 takes twice what a P100's does (pytorch's issue 13412), so the range reaches from nothing to twice the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

LOW_SHARE, HIGH_SHARE = 0.96, 1.06
FORWARD, BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


class Factors(NamedTuple):
    """Multiples of the bytes of input, output and weight, whose channels are rounded up to four."""

    expected: float
    low: float
    high: float


_COPIES, _NOTHING = Factors(1, 1, 1), Factors(0, 0, 0)
_FACTORS = {  # of the forward pass and the input's gradient; of the weight's with benchmark, and without
    "dense": (_COPIES, Factors(1.5, 1, 2), Factors(2, 1, 2)),
    "stem of 7 x 7": (_COPIES, Factors(2, 1, 2), Factors(2, 1, 2)),
    "other stem": (_COPIES, Factors(1, 1, 2), Factors(1, 1, 2)),
    "grouped": (Factors(1, 0, 1), Factors(1.5, 0, 1.5), Factors(2, 0, 2)),  # some models fit better without any
    "product": (_NOTHING, _NOTHING, _NOTHING),  # kernels of 1 x 1, patches, channels last
    "dense, not measured": (Factors(1, 0, 2), Factors(1.5, 0, 4), Factors(2, 0, 4)),
    "product, not measured": (Factors(0, 0, 1), Factors(0, 0, 1), Factors(0, 0, 1)),
}
_STEM_CHANNELS = 3
_ROUNDED_CHANNELS = 4


class Workspace(NamedTuple):
    """Workspace of one call, in bytes."""

    expected: int
    low: int
    high: int
    is_new: bool
    """torch empties its cache before: ``cudnn.benchmark`` sees the call's key for the first time."""


class Convolutions:
    """The convolutions of a process.

    Args:
        has_tf32: the GPU has tensor cores for fp32 (compute capability 8.0 and newer).
    """

    def __init__(self, *, has_tf32: bool) -> None:
        self.ran = False
        """cuDNN has run one."""
        self.unmeasured: dict[str, None] = {}
        """Kinds of convolutions that ran and whose workspaces were never measured."""
        self.benchmark = False
        """``cudnn.benchmark`` was on."""
        self._has_tf32 = has_tf32
        self._keys: set[Any] = set()

    def workspaces(self, func: Any, args: Any, result: Any) -> Iterator[Workspace]:
        """Yield the workspaces of a convolution on a GPU, or of its backward pass, in order."""
        x, w, y, at = (args[0], args[1], result, 3) if func is FORWARD else (args[1], args[2], args[0], 4)
        stride, padding, dilation, transposed, _, groups = args[at : at + 6]
        is_needed = {"forward": func is FORWARD, "input": func is BACKWARD and args[10][0]}
        is_needed["weight"] = func is BACKWARD and args[10][1]
        is_last = _is_channels_last(x) or _is_channels_last(w)
        is_depthwise = x.shape[1] == groups > 1 and not transposed
        if not torch.backends.cudnn.enabled or (is_depthwise and not is_last and x.dtype == torch.float32):
            return  # a kernel of torch's own (``use_cudnn_depthwise`` in ``ATen/native/Convolution.cpp``)
        benchmark = torch.backends.cudnn.benchmark
        self.ran, self.benchmark = True, self.benchmark or benchmark
        kind = self._kind(x, w, (stride, dilation), transposed=transposed, groups=groups, is_last=is_last)
        size = _padded_bytes(x, 1) + _padded_bytes(y, 1) + _padded_bytes(w, 0, 1)
        for call in (name for name, needed in is_needed.items() if needed):
            key = (call, x.shape, w.shape, *map(tuple, (stride, padding, dilation)), groups, x.dtype, is_last)
            is_new = benchmark and key not in self._keys
            self._keys.add(key)
            factors = _FACTORS[kind][0 if call != "weight" else 1 if benchmark else 2]
            expected, low, high = (round(factor * size) for factor in factors)
            yield Workspace(expected, low, high, is_new)

    def _kind(self, x: Any, w: Any, steps: Any, *, transposed: bool, groups: int, is_last: bool) -> str:
        kernel, (stride, dilation) = tuple(w.shape[2:]), steps
        is_product = is_last or kernel in ((1,) * len(kernel), tuple(stride))
        unmeasured = None if is_last else self._why_not_measured(x, dilation, transposed)
        if unmeasured:
            self.unmeasured[unmeasured] = None
            return "product, not measured" if is_product else "dense, not measured"
        if is_product or groups > 1:
            return "product" if is_product else "grouped"
        return "dense" if x.shape[1] > _STEM_CHANNELS else "stem of 7 x 7" if kernel == (7, 7) else "other stem"

    def _why_not_measured(self, x: Any, dilation: Any, transposed: bool) -> str | None:
        if x.dtype != torch.float32:
            return f"in {str(x.dtype).replace('torch.', '')}"
        if not (self._has_tf32 and _allows_tf32()):
            return "in fp32 without TF32"
        if x.dim() != 4:
            return f"over {x.dim() - 2} dimension{'s' if x.dim() > 3 else ''}"
        return "that are transposed" if transposed else "with dilation" if any(each > 1 for each in dilation) else None


def _allows_tf32() -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch 2.9 and newer, where the program has set convolutions apart
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


def _is_channels_last(tensor: Any) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def _padded_bytes(tensor: Any, *channels: int) -> int:
    """Return the bytes of a tensor whose channels are rounded up."""
    size = int(tensor.element_size())
    for at, length in enumerate(tensor.shape):
        size *= -(-length // _ROUNDED_CHANNELS) * _ROUNDED_CHANNELS if at in channels else length
    return size
