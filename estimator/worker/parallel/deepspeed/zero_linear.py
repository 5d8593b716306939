"""DeepSpeed's linear layer under ZeRO stage 3, in place of torch's.

Follows ``LinearFunctionForZeroStage3`` (``runtime/zero/linear.py``) of DeepSpeed 0.19.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...replaced import replaced

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def linear_layers_of_zero() -> AbstractContextManager[None]:
    """Replace torch's linear layers by DeepSpeed's."""
    return replaced((torch.nn.functional, "linear", _ZeroLinear.apply))


class _ZeroLinear(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves the parameter and not its weights, and its input whatever trains."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, weight: Any, bias: Any = None) -> Any:
        """Multiply."""
        ctx.save_for_backward(tensor, weight, bias)
        if tensor.dim() == 2 and bias is not None:
            return torch.addmm(bias, tensor, weight.t())
        output = tensor.matmul(weight.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of input, weight and bias."""
        tensor, weight, bias = ctx.saved_tensors
        for_tensor = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        for_weight = for_bias = None
        rows = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[1]:
            for_weight = rows.t().matmul(tensor.reshape(-1, tensor.shape[-1]))
        if bias is not None and ctx.needs_input_grad[2]:
            for_bias = rows.sum(0)
        return for_tensor, for_weight, for_bias
