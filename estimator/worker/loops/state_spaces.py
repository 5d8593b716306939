"""Stand-in for the fused kernel of Mamba 2's blocks, where the job's interpreter has it.

Source: state-spaces/mamba ``ops/triton/ssd_combined.py`` (``MambaSplitConv1dScanCombinedFn``, 2026-07), which
transformers 5 calls in Mamba 2, Bamba, Falcon-H1, Zamba 2 and Nemotron-H: it saves the projection that it reads and the
scan's output, and recomputes the rest. Without it, transformers' plain operations run, and are traced.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import torch

from ..replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

KERNEL = "mamba2_split_conv1d_scan_combined"
_LIBRARIES = ("mamba_ssm", "causal_conv1d")


def kernel_versions(modules: Iterable[str] | None = None) -> dict[str, str]:
    """Return the versions of the kernels' libraries; empty: one is missing, or no imported block calls them.

    Args:
        modules: Python modules that may call the kernel; None: all that are imported.
    """
    names = [name for name in sys.modules if ".models." in name] if modules is None else modules
    if not any(_has_kernel(name) for name in names):
        return {}
    if not all(importlib.util.find_spec(library) for library in _LIBRARIES):
        return {}
    return {library: importlib.metadata.version(library) for library in _LIBRARIES}


def _has_kernel(name: str) -> bool:
    """Return True if the module has imported the kernel; a module that imports what it is asked for is not asked.

    The aliases of image processors in transformers 5.20 do so, and need torchvision then.
    """
    return KERNEL in getattr(sys.modules.get(name), "__dict__", ())


def fused_state_spaces(modules: Iterable[str]) -> AbstractContextManager[None]:
    """Make the blocks in these modules allocate as with the fused kernel."""
    return replaced(*((sys.modules[name], KERNEL, split_conv1d_scan) for name in modules if _has_kernel(name)))


def split_conv1d_scan(  # noqa: PLR0917 - the kernel's own signature
    zxbcdt: Any,
    conv1d_weight: Any,
    conv1d_bias: Any,
    dt_bias: Any,
    A: Any,  # noqa: N803
    D: Any,  # noqa: N803
    chunk_size: int,
    *,
    rmsnorm_weight: Any = None,
    outproj_weight: Any = None,
    headdim: int = 64,
    ngroups: int = 1,
    **_settings: Any,
) -> Any:
    """Return the output of a block's convolution, scan, norm and projection."""
    del conv1d_bias
    sizes = (headdim, ngroups, chunk_size)
    return _StateSpace.apply(zxbcdt, conv1d_weight, dt_bias, A, D, rmsnorm_weight, outproj_weight, sizes)


class _StateSpace(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves the projection, the scan's output, and a reciprocal deviation per group."""

    @staticmethod
    def forward(ctx: Any, projected: Any, *parameters: Any) -> Any:
        *weights, sizes = parameters
        ctx.sizes = sizes
        _convolved, _states = _inputs_and_states(projected, weights, sizes)
        output = projected.new_empty((*projected.shape[:2], weights[3].shape[0] * sizes[0]))
        deviations = projected.new_empty((*projected.shape[:2], sizes[1]), dtype=torch.float32)
        ctx.save_for_backward(projected, output, deviations, *weights)
        return torch.nn.functional.linear(torch.empty_like(output), weights[5])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        projected, output, _deviations, *weights = ctx.saved_tensors
        _convolved, _states = _inputs_and_states(projected, weights, ctx.sizes)
        normed, of_output = torch.empty_like(output), torch.nn.functional.linear(gradient, weights[5].t())
        of_convolved, of_states = _inputs_and_states(projected, weights, ctx.sizes)
        of_weight = torch.mm(gradient.flatten(0, 1).t(), normed.flatten(0, 1)) if ctx.needs_input_grad[6] else None
        result = torch.empty_like(projected)
        del of_output, of_convolved, of_states
        small = (None if weight is None else torch.empty_like(weight) for weight in weights[:5])
        return (result, *small, of_weight, None)


def _inputs_and_states(projected: Any, weights: Any, sizes: tuple[int, int, int]) -> tuple[Any, Any]:
    """Allocate the convolution's output and the fp32 states between chunks."""
    head_size, groups, chunk = sizes
    batch, length, _ = projected.shape
    channels, heads = weights[0].shape[0], weights[3].shape[0]
    state = (channels - heads * head_size) // groups // 2
    chunks = -(-length // chunk)
    return (
        projected.new_empty((batch, length, channels)),
        projected.new_empty((batch, chunks, heads, head_size, state), dtype=torch.float32),
    )
