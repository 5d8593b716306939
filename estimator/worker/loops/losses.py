"""Losses that a training loop takes itself, and those that never have all logits at once: their memory on fake tensors.

Sources: torchtune 0.6 ``modules/loss/ce_chunked_output_loss.py``, torchtitan ``components/loss.py``, NeMo AutoModel 0.3
``components/loss/masked_ce.py`` and ``linear_ce.py`` (cut_cross_entropy), Liger-Kernel 0.8.2
``ops/fused_linear_cross_entropy.py`` and ``ops/cross_entropy.py``.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNKS = 8
"""``num_output_chunks`` of torchtune, ``num_chunks`` of torchtitan."""


def full_loss(logits: Any, labels: Any, *, in_place: bool = False, compiled: bool = False) -> Any:
    """Cross entropy on fp32 logits, over which a fused kernel writes the gradient; or compiled, which has no copy."""
    flat = logits.reshape(-1, logits.shape[-1])
    if compiled:
        return _CompiledCrossEntropy.apply(flat)
    if in_place:
        return _InPlaceCrossEntropy.apply(flat.float())
    return torch.nn.functional.cross_entropy(flat.float(), labels.reshape(-1), reduction="sum")


def chunked_loss(logits: list[Any], labels: Any, *, compiled: bool = False) -> Any:
    """Cross entropy of one chunk of positions after the other."""
    total: Any = 0.0
    for part, target in zip(logits, labels.chunk(len(logits), dim=1)):  # noqa: B905 - not in Python 3.9
        total += full_loss(part, target, compiled=compiled)
    return total


def chunks_at_once_loss(hidden: Any, labels: Any, head: Any, *, compiled: bool = False) -> Any:
    """Loss of which each chunk of positions runs forward and backward through the head before the next one.

    torchtitan's ``ChunkedCELoss`` (2026-04-27, pull request 2937; today ``ChunkedLossWrapper``): FSDP2 keeps the head
    gathered for all chunks and reduces its gradient in the last one; gradients of the chunks are put together in fp32.

    Args:
        hidden: what the head reads.
        labels: the targets.
        head: the output layer.
        compiled: the loss is one compiled kernel; the head is not.
    """
    sharded = hasattr(head, "set_requires_gradient_sync")
    parts = [part.contiguous().detach().requires_grad_() for part in hidden.chunk(CHUNKS, dim=1)]
    gradient = torch.zeros_like(hidden, dtype=torch.float32)
    total = hidden.new_zeros((), dtype=torch.float32)
    if sharded:
        head.set_reshard_after_forward(False)
        head.set_reshard_after_backward(False)
        head.set_requires_gradient_sync(False, recurse=False)
        head.unshard()
    start = 0
    for part, target in zip(parts, labels.chunk(CHUNKS, dim=1)):  # noqa: B905 - not in Python 3.9
        if sharded and part is parts[-1]:
            head.set_requires_gradient_sync(True, recurse=False)
        logits = head(part)  # the variable holds it until the next chunk's is there
        loss = full_loss(logits, target, compiled=compiled)
        total = total + loss.detach()
        loss.backward()
        gradient[:, start : start + part.shape[1]] = part.grad.to(gradient.dtype)
        start, part.grad = start + part.shape[1], None
    if sharded:
        head.set_reshard_after_forward(True)
        head.set_reshard_after_backward(True)
        head.reshard()
    return _KnownGradient.apply(hidden, gradient.to(hidden.dtype), total)


def fused_linear_loss(hidden: Any, weight: Any, *, in_backward: bool, fp32_sums: bool) -> Any:
    """Loss of hidden states and the head's weight.

    Args:
        hidden: what the head reads.
        weight: of the head.
        in_backward: gradients are computed in the backward pass (cut_cross_entropy), else in the forward pass.
        fp32_sums: each chunk's gradient of the head is cast to fp32 before it is added.
    """
    flat = hidden.flatten(0, 1)
    if in_backward:
        return _CutCrossEntropy.apply(flat, weight)
    return _FusedLinearCrossEntropy.apply(flat, weight, fp32_sums)


class _KnownGradient(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """A loss whose gradient is there already (torchtitan's ``_DecoderOutputGradientBackProp``)."""

    @staticmethod
    def forward(ctx: Any, _hidden: Any, gradient: Any, loss: Any) -> Any:
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return ctx.saved_tensors[0], None, None


class _InPlaceCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits.detach())
        return logits.new_zeros(logits.shape[0]).sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return ctx.saved_tensors[0]


class _CompiledCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        sums = logits.new_empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits, sums)
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0])


class _CutCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any) -> Any:
        sums = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, sums)
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        hidden, weight, _sums = ctx.saved_tensors
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        return torch.zeros_like(hidden), of_weight


class _FusedLinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, fp32_sums: bool) -> Any:
        tokens, size = hidden.shape
        parts = -(-weight.shape[0] // size)
        chunk = 1 << (-(-tokens // parts) - 1).bit_length()
        gradient = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = hidden.new_zeros(tokens, dtype=torch.float32)
        for start in range(0, tokens, chunk):
            rows = hidden[start : start + chunk]
            logits = rows @ weight.t()
            gradient[start : start + chunk] = logits @ weight
            if of_weight is not None and fp32_sums:
                of_weight += torch.mm(logits.t(), rows).float()
            elif of_weight is not None:
                torch.addmm(of_weight, logits.t(), rows.to(logits.dtype), out=of_weight)
        ctx.save_for_backward(gradient.detach(), None if of_weight is None else of_weight.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return (*ctx.saved_tensors, None)
