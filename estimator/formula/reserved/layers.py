"""Norms and linear layers of a block as programs: what each allocates and releases, forward and backward.

The order is that of autograd: a product's weight gradient, then its input's, then what it had saved is released.
Under autocast an input in another dtype, a weight and a weight gradient are cast, each into a tensor of its own
(ATen/autocast_mode.cpp); adapters follow ``LoraLayer.forward`` (peft, ``tuners/lora/layer.py``).
"""

from collections.abc import Sequence

import msgspec

from ..activations.layer_context import LayerContext
from .recorder import SMALLEST_BYTES, Backward, BlockProgram, Op, Recorder, Tensor


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """The weight of a linear layer on this rank, as it is multiplied."""

    elements: int
    trained: bool
    quantized: bool = False
    adapter: tuple[int, int] | None = None
    """Elements of the adapter's two matrices; None: it has none."""


class Writer(msgspec.Struct, kw_only=True):
    """A recorder, with the figures of the block that it records."""

    rec: Recorder
    context: LayerContext
    gradient_width: int
    """Bytes per element of a weight's gradient when the backward pass has computed it."""
    graph: bool = True
    """The recorded operations have a graph: they save tensors for a backward pass."""
    casts: list[Tensor] = msgspec.field(default_factory=list)
    """Autocast's casts of trained weights, which it keeps until the forward pass is over."""
    gradients: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Slots and bytes of the weights' gradients."""
    passes: bool = False
    """Weights come from CPU RAM while their layer runs."""
    held: list[Tensor] = msgspec.field(default_factory=list)
    """Tensors that variables of the block hold until it returns."""
    selected: set[int] = msgspec.field(default_factory=set)
    """Slots of what selective checkpointing keeps: attention's output, and every second matrix product."""

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.context.tokens

    @property
    def compute(self) -> int:
        """Bytes per element in which matrices are multiplied."""
        return self.context.widths.compute

    def projected(self, weight: Weight) -> int:
        """Return the bytes per element of what a layer returns: a quantized one gives back the dtype that it reads."""
        return self.context.widths.projected if weight.quantized else self.compute

    def program(self, forward: Sequence[Op], backward: Sequence[Op], saved_bytes: int) -> "BlockProgram":
        """Return what was recorded as a program."""
        return BlockProgram(
            forward=tuple(forward),
            backward=tuple(backward),
            slots=self.rec.slots,
            gradients=tuple(self.gradients),
            saved_bytes=saved_bytes,
        )

    def gradient(self, elements: int, width: int) -> None:
        """Record a parameter's gradient."""
        made = self.rec.new(elements * width)
        if made.size >= SMALLEST_BYTES:
            self.gradients.append((made.slot, made.size))


def norm(w: Writer, x: Tensor, size: float, *, trained: bool, final: bool = False) -> tuple[Tensor, Backward]:
    """Return the output of a norm over ``size`` elements, and its backward pass. The input stays the caller's.

    Args:
        w: of the block.
        x: the input.
        size: elements per token.
        trained: its scale trains.
        final: it is the norm behind the blocks.
    """
    rec, context, wide = w.rec, w.context, 4 * w.tokens * size
    plain = x.size
    if context.arch.norm == "layer":
        return _one_kernel_norm(w, x, wide if context.widths.mixed else plain, output=plain, tensors=2)
    if context.rms_norm == "fused" or context.fuses_norm(final=final):
        return _one_kernel_norm(w, x, plain, output=plain, tensors=1)
    narrow = plain < wide
    x32 = rec.new(wide) if narrow else x.keep()
    rec.passing(wide)  # its squares
    scaled = rec.new(wide)
    if context.prompts:
        rec.drop(x32)
    kept: Tensor | None = None
    if narrow:
        if context.rms_norm == "torch":  # multiplied by the scale in fp32
            kept, product = scaled, rec.new(wide)
            output = rec.new(plain)
            rec.drop(product)
        else:
            kept = rec.new(plain)
            output = rec.new(plain)
            rec.drop(scaled)
    else:
        output, kept = rec.new(wide), scaled
    if not (w.graph and trained):
        rec.drop(kept)
        kept = None
    if not (w.graph or context.prompts):
        rec.drop(x32)

    def backward(gradient: Tensor) -> Tensor:
        first = rec.new(output.size)
        if trained:
            rec.passing(output.size)  # of the scale, before it is summed
        rec.drop(gradient)
        if kept is not None:
            rec.drop(kept)
        grown = rec.cast(first, wide)
        product = rec.new(wide)
        result = rec.new(wide)
        rec.drop(product, grown)
        chain = [rec.new(wide) for _ in range(4)]
        rec.drop(*reversed(chain[:3]))
        rec.drop(x32, chain[3])
        return rec.cast(result, plain)

    return output, backward


def _one_kernel_norm(
    w: Writer, x: Tensor, saved_size: float, *, output: float, tensors: int
) -> tuple[Tensor, Backward]:
    rec = w.rec
    saved = x.keep() if round(saved_size) == x.size else rec.new(saved_size)
    result = rec.new(output)
    if not w.graph:
        rec.drop(saved)

    def backward(gradient: Tensor) -> Tensor:
        made = [rec.new(saved_size) for _ in range(tensors)]
        rec.drop(gradient, saved, *made[1:])
        return rec.cast(made[0], x.size)

    return result, backward


def linear(w: Writer, x: Tensor, weight: Weight, in_size: float, out_size: float) -> tuple[Tensor, Backward]:
    """Return a linear layer's output, and its backward pass. The input stays the caller's."""
    rec, widths, c = w.rec, w.context.widths, w.compute
    into = c * in_size * w.tokens
    source = x.size
    casts_weight = widths.autocast and not weight.quantized and widths.weight != widths.compute
    passing = rec.new(c * weight.elements) if w.passes else None
    weight16 = rec.new(c * weight.elements) if casts_weight else None
    own = x.keep() if round(into) == x.size else rec.new(into)
    unpacked = rec.new(w.context.framework.unpacked_width * weight.elements) if weight.quantized else None
    plain = rec.new(c * out_size * w.tokens)
    if unpacked is not None:
        rec.drop(unpacked)
    output = rec.cast(plain, w.projected(weight) * out_size * w.tokens)
    saved: list[Tensor] = []
    if w.graph and weight.trained:
        saved.append(own)
    else:
        rec.drop(own)
    if weight16 is not None:
        if w.graph:
            saved.insert(0, weight16)
        elif weight.trained:
            w.casts.append(weight16)
        else:
            rec.drop(weight16)
    if passing is not None:
        rec.drop(passing)
    adapter = _adapter(w, x, weight.adapter, in_size, out_size) if weight.adapter else None
    if adapter is not None:
        output = adapter[0](output)

    def backward(gradient: Tensor) -> Tensor:
        passing = adapter[1]() if adapter is not None else None
        computed: Tensor | None = None
        if weight.trained and widths.autocast:
            computed = rec.new(c * weight.elements)
        elif weight.trained:
            w.gradient(weight.elements, w.gradient_width)
        dequantized = rec.new(w.context.framework.unpacked_width * weight.elements) if weight.quantized else None
        narrow = rec.cast(gradient, plain.size)
        result = rec.new(into)
        if dequantized is not None:
            rec.drop(dequantized)
        rec.drop(narrow, *saved)
        result = rec.cast(result, source)
        if computed is not None:
            w.gradient(weight.elements, w.gradient_width)
            rec.drop(computed)
        return result if passing is None else rec.add_into(result, passing)

    return output, backward


def summed(w: Writer, part: Tensor, size: float) -> Tensor:
    """Return the sum of the ranks' parts of an output, where tensor parallelism follows a plan: a tensor of its own.

    ``Partial.redistribute`` reduces a copy (``all_reduce`` in torch 2.13, ``csrc/distributed/c10d/Functional.cpp``).

    Args:
        w: of the block.
        part: the rank's, which is released.
        size: elements of the output per token.
    """
    context = w.context
    if not context.follows_plan or context.residual_ranks > 1:
        return part
    total = w.rec.new(context.widths.compute * size * w.tokens)
    w.rec.drop(part)
    return total


def _adapter(w: Writer, x: Tensor, matrices: tuple[int, int], in_size: float, out_size: float):  # type: ignore[no-untyped-def]
    """Return what adds a LoRA adapter's output to its layer's, and the adapter's backward pass."""
    rec, context = w.rec, w.context
    a, rank = context.adapter_width, context.lora_rank or 1
    c = w.compute if context.widths.autocast else a
    wide = c * in_size * w.tokens
    # peft casts 16-bit inputs to the adapter's fp32 (``_cast_input_dtype``), and autocast casts them back
    there_and_back = context.widths.autocast and a > c and context.casts_adapter_inputs
    widened = rec.new(a * in_size * w.tokens) if there_and_back else None
    own = x.keep() if widened is None and round(wide) == x.size else rec.new(wide)
    low = rec.new(c * rank * w.tokens)
    out = rec.new(c * out_size * w.tokens)
    scaled = rec.new(out.size)
    rec.drop(out)
    if widened is not None:
        rec.drop(widened)
    saved = [own, low] if w.graph else []
    if not w.graph:
        rec.drop(own, low)

    def add(base: Tensor) -> Tensor:
        total = rec.new(max(scaled.size, base.size))
        rec.drop(scaled)
        if total.size != base.size:
            narrow = rec.new(base.size)
            rec.drop(total, base)
            return narrow
        rec.drop(base)
        return total

    def backward() -> Tensor:
        grown = rec.new(scaled.size)
        first = rec.new(c * rank * w.tokens)
        w.gradient(matrices[1], context.widths.adapter)
        rec.drop(grown)
        result = rec.new(wide)
        w.gradient(matrices[0], context.widths.adapter)
        rec.drop(first, *saved)
        if there_and_back:
            result = rec.cast(result, a * in_size * w.tokens)
        return rec.cast(result, x.size)

    return add, backward
