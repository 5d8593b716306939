"""What follows the blocks as a program: final norm, head and loss."""

from ...model import Stage
from ..activations import LayerContext, LossBytes
from .block import GRADIENT, INPUT, BlockProgram
from .linear import Weight, Writer, linear, norm
from .recorder import SMALLEST_BYTES, Recorder, Tensor


def record_tail(
    context: LayerContext, stage: Stage, loss: LossBytes, *, logits: int, gradient_width: int, saved_bytes: float
) -> BlockProgram:
    """Return the programs of the final norm, the head and the loss.

    Args:
        context: of the blocks.
        stage: the stage.
        loss: bytes of the logits and the loss.
        logits: elements of the logits on this rank; 0: the model has no head over a vocabulary.
        gradient_width: bytes per element of the gradients that its backward pass computes.
        saved_bytes: what everything outside of the blocks saves by the closed form.
    """
    rec = Recorder(3)
    w = Writer(rec=rec, context=context, gradient_width=gradient_width)
    arch = context.arch
    residual = context.widths.residual * arch.hidden * w.tokens / context.residual_ranks
    x = Tensor(INPUT, max(SMALLEST_BYTES, round(residual)))
    y, norm_back = norm(w, x, arch.hidden / context.residual_ranks, trained=context.parts.norms > 0)
    weight = _head_weight(stage)
    logits = min(logits, loss.forward_bytes // w.compute)  # a loss that takes parts of them never has them all
    output, head_back = linear(w, y, weight, arch.hidden, logits / max(1, w.tokens))
    rec.drop(y, x)
    loss_back = _loss(w, output, loss, logits)
    forward, rec.ops = rec.ops, []
    gradient = loss_back()
    begins = len(rec.ops)
    found = norm_back(head_back(gradient))
    # this gradient is the one that the last block takes, in a slot that no program releases
    backward = [(GRADIENT if slot == found.slot else slot, size, stream) for slot, size, stream in rec.ops]
    return BlockProgram(
        forward=tuple(forward),
        backward=tuple(backward),
        slots=rec.slots,
        gradients=tuple(w.gradients),
        selected=frozenset(),
        casts=(),
        saved_bytes=round(saved_bytes),
        begins=begins,
    )


def _head_weight(stage: Stage) -> Weight:
    held = max((h for h in stage.head if h.group.linear and not h.adapter), key=lambda h: h.elements, default=None)
    held = held or stage.token_embedding
    if held is None:
        return Weight(elements=0, trained=False)
    return Weight(elements=held.largest_tensor, trained=stage.trains_head, quantized=held.quantized)


def _loss(w: Writer, output: Tensor, loss: LossBytes, logits: int):  # type: ignore[no-untyped-def]
    """Record the loss; return its backward pass, which gives the gradient of the logits."""
    rec, c = w.rec, w.compute
    low, wide = c * logits, 4 * logits
    if loss.forward_bytes == low + (2 * wide if low != wide else wide) and low:
        copy = rec.new(wide) if low != wide else output.keep()
        saved = rec.new(wide)
        rec.drop(copy, output)

        def full_backward() -> Tensor:
            first = rec.new(wide)
            second = rec.new(wide)
            rec.drop(first, saved)
            return rec.cast(second, low)

        return full_backward
    kept = max(0, min(loss.forward_bytes, loss.backward_bytes) - output.size)
    held = _pieces(rec, kept, wide)
    rec.passing(*_sizes(loss.forward_bytes - output.size - kept, wide))
    size = output.size

    def backward() -> Tensor:
        rec.passing(*_sizes(loss.backward_bytes - size - kept, wide))
        rec.drop(*held, output)
        return rec.new(size)

    return backward


def _sizes(total: float, piece: int) -> list[float]:
    """Return the bytes as tensors of one size, and the rest."""
    if total <= 0:
        return []
    whole = int(total // piece) if piece else 0
    return [piece] * whole + ([total - whole * piece] if total - whole * piece > 0 else [])


def _pieces(rec: Recorder, total: float, piece: int) -> list[Tensor]:
    return [rec.new(size) for size in _sizes(total, piece)]
