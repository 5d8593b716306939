"""The head and the loss of the last stage as a program: what they allocate and release behind the blocks."""

from collections.abc import Callable

from ...common.records import replace
from ...model.rank_share import Stage
from ..activations.layer_context import LayerContext
from ..logits_and_loss import gathered_parts
from ..loss_bytes import LossBytes
from ..rank_memory import RankMemory
from .block import GRADIENT, INPUT
from .layers import Weight, Writer, linear, norm
from .recorder import SMALLEST_BYTES, Backward, BlockProgram, Recorder, Tensor

_CHUNKS = 8
"""Chunks of torchtitan's loss."""
_MOST_PIECES = 16
"""Most tensors of the logits' size that a loss has at the same time."""


def record_tail(rank: RankMemory, context: LayerContext, *, gradient_width: int) -> BlockProgram:
    """Return the programs of the final norm, the head and the loss.

    Args:
        rank: of the last stage.
        context: of the blocks.
        gradient_width: bytes per element of the gradients that its backward pass computes.
    """
    stage, loss = rank.stage, rank.loss
    rec = Recorder(3)
    w = Writer(rec=rec, context=context, gradient_width=gradient_width, graph=rank.job.trains)
    arch = context.arch
    residual = context.widths.residual * arch.hidden * w.tokens / context.residual_ranks
    x = Tensor(INPUT, max(SMALLEST_BYTES, round(residual)))
    if stage.layers or not w.context.caches:
        y, norm_back = norm(w, x, arch.hidden / context.residual_ranks, trained=context.parts.norms > 0, final=True)
    else:  # a device map leaves the norm with the last block
        y, norm_back = x.keep(), lambda gradient: gradient
    if context.caches:
        rec.drop(x)  # the blocks' model has returned
    weight = _head_weight(stage, tied=rank.tied)
    if stage.passing_head_bytes:
        w.passes, weight = True, Weight(elements=arch.hidden * arch.vocab, trained=False)
    ranks = rank.job.parallel.tensor if rank.job.framework.splits_logits else 1
    logits = -(-rank.job.scored_tokens * arch.vocab // ranks) if arch.has_vocab_head else 0
    if _takes_chunks(rank) and weight.trained:
        return _chunked_tail(w, (x, y, norm_back), weight, logits, saved_bytes=rank.saved.outside_blocks_bytes)
    logits = min(logits, loss.forward_bytes // w.compute)  # a loss that takes parts of them never has them all
    parts = gathered_parts(rank.job, arch, stage)
    output, head_back = linear(w, y, weight, arch.hidden, logits / parts / max(1, w.tokens))
    if parts > 1:
        output, head_back = _gathered(w, output, head_back, logits)
    rec.drop(y, *(() if context.caches else (x,)))
    held = _held_outputs(w, output, loss)
    replaces = len(rec.ops)
    loss_back = _loss(w, output, loss, logits, held)
    forward, rec.ops = rec.ops, []
    gradient = loss_back()
    begins = len(rec.ops)
    found = norm_back(head_back(gradient))
    # this gradient is the one that the last block takes, in a slot that no program releases
    backward = [(GRADIENT if slot == found.slot else slot, size, stream) for slot, size, stream in rec.ops]
    return replace(
        w.program(forward, backward, rank.saved.outside_blocks_bytes),
        begins=begins,
        held=None if held is None or held.size < SMALLEST_BYTES else held.slot,
        replaces=replaces,
        returned=output.slot if loss.upcast_bytes and held is None and output.size >= SMALLEST_BYTES else None,
    )


def _takes_chunks(rank: RankMemory) -> bool:
    """Return True if the loss runs forward and backward chunk by chunk, under FSDP2, which takes the gradients."""
    job = rank.job
    at_once = job.training.loss == "chunked" and job.framework.chunked_loss == "at-once"
    return at_once and job.strategy.fsdp2 and job.shards.weights > 1 and rank.arch.has_vocab_head


def _chunked_tail(
    w: Writer, normed: tuple[Tensor, Tensor, Backward], weight: Weight, logits: int, *, saved_bytes: int
) -> BlockProgram:
    """Return the programs of torchtitan's loss in chunks (``ChunkedLossWrapper``), after which the norm runs backward.

    The gradients of the head and of its input are kept whole, in fp32, until the last chunk.
    """
    rec, c, (x, y, norm_back) = w.rec, w.compute, normed
    chunk, head, hidden = logits / _CHUNKS, c * weight.elements, round(y.size / c)
    gradients = rec.new(4 * hidden)
    whole: Tensor | None = None
    for _ in range(_CHUNKS):
        part = rec.new(c * chunk)
        wide = rec.new(4 * chunk)
        saved = rec.new(4 * chunk)
        rec.drop(wide)
        first, second = rec.new(4 * chunk), rec.new(4 * chunk)
        rec.drop(first, saved)
        low = rec.cast(second, c * chunk)
        of_weight, of_input = rec.new(head), rec.new(c * hidden / _CHUNKS)
        rec.drop(low, part)
        if whole is None:
            whole = rec.new(w.context.widths.reduce * weight.elements)
        rec.drop(of_weight, of_input)
    rec.drop(y)
    forward, rec.ops = rec.ops, []
    found = norm_back(rec.cast(gradients, c * hidden))
    rec.drop(x)
    backward = [(GRADIENT if slot == found.slot else slot, size, stream) for slot, size, stream in rec.ops]
    if whole is not None and whole.size >= SMALLEST_BYTES:
        w.gradients.insert(0, (whole.slot, whole.size))
    return w.program(forward, backward, saved_bytes)


def _gathered(w: Writer, part: Tensor, head_back: Backward, logits: int) -> tuple[Tensor, Backward]:
    """Return the logits of all ranks, gathered from their parts, and the head's backward pass of this rank's part."""
    rec, size = w.rec, part.size
    gathered = rec.new(w.compute * logits)
    whole = rec.new(w.compute * logits)
    rec.drop(gathered, part)

    def backward(gradient: Tensor) -> Tensor:
        own = rec.new(size)
        rec.drop(gradient)
        return head_back(own)

    return whole, backward


def _head_weight(stage: Stage, *, tied: bool) -> Weight:
    own = (h for h in stage.head if h.group.linear and not h.adapter and not tied)
    held = max(own, key=lambda h: h.elements, default=None) or stage.token_embedding
    if held is None:
        return Weight(elements=0, trained=False)
    return Weight(elements=held.largest_tensor, trained=stage.trains_head, quantized=held.quantized)


def _held_outputs(w: Writer, output: Tensor, loss: LossBytes) -> Tensor | None:
    """Return what a variable of the training loop holds: the outputs, or an fp32 copy that the model returns."""
    if not loss.retained_bytes:
        return None
    return output.keep() if loss.retained_bytes == output.size else w.rec.new(loss.retained_bytes)


def _loss(  # type: ignore[no-untyped-def]
    w: Writer, output: Tensor, loss: LossBytes, logits: int, held: Tensor | None
):
    """Record the loss; return its backward pass, which gives the gradient of the logits.

    Args:
        w: of the tail.
        output: the head's.
        loss: the closed form's figures.
        logits: elements of the logits.
        held: what a variable holds besides.
    """
    rec, c = w.rec, w.compute
    low, wide = c * logits, 4 * logits
    forward_bytes = loss.forward_bytes - loss.retained_before_bytes
    if loss.forward_bytes == 2 * low:  # computed in the compute type
        wide = low
    returned = held is not None and held is not output and held.size == wide and low
    if returned or (forward_bytes == low + (2 * wide if low != wide else wide) and low):
        copy = held.keep() if returned and held else rec.new(wide) if low != wide else output.keep()
        if returned:
            rec.drop(output)
        saved = rec.new(wide)
        rec.drop(copy)
        if not returned:
            rec.drop(output)

        def full_backward() -> Tensor:
            first = rec.new(wide)
            second = rec.new(wide)
            rec.drop(first, saved)
            return rec.cast(second, low)

        return full_backward
    if loss.upcast_bytes and held is None:
        return _lowered_loss(rec, low, wide)
    beside = 0 if held is None or held is output else held.size
    kept = max(0, min(forward_bytes, loss.backward_bytes - beside) - output.size)
    pieces = [rec.new(size) for size in _sizes(kept, wide)]
    rec.passing(*_sizes(forward_bytes - output.size - kept, wide))
    size = output.size

    def backward() -> Tensor:
        rec.passing(*_sizes(loss.backward_bytes - beside - size - kept, wide))
        rec.drop(*pieces, output)
        return rec.new(size)

    return backward


def _lowered_loss(rec: Recorder, low: float, wide: float) -> Callable[[], Tensor]:
    """Record a loss that leaves the cast of its log-probabilities to autocast; return its backward pass.

    ``nll_loss`` saves their fp32 copy, the log-softmax itself; its gradient is cast back (ATen/autocast_mode.h). The
    logits stay until accelerate has cast what the model returns (``convert_outputs_to_fp32``).
    """
    probabilities, copied = rec.new(low), rec.new(wide)

    def backward() -> Tensor:
        first = rec.new(wide)
        rec.drop(copied)
        narrow = rec.cast(first, low)
        result = rec.new(low)
        rec.drop(narrow, probabilities)
        return result

    return backward


def _sizes(total: float, piece: int) -> list[float]:
    """Return the bytes as tensors of one size, and the rest; as one tensor where they are many times that size.

    Of a few tokens the logits are small, and what is as large as many of them is a gradient of the head.
    """
    if total <= 0:
        return []
    whole = int(total // piece) if piece else 0
    if whole > _MOST_PIECES:
        return [total]
    return [piece] * whole + ([total - whole * piece] if total - whole * piece > 0 else [])
