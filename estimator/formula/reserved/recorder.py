"""Recorder of a program's allocations and releases: tensors counted by their references, as torch counts them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..activations.layer_context import LayerContext

Op = tuple[int, int, int]
"""A slot, the bytes allocated in it, and the stream; or the slot, ``RELEASE`` and 0."""
RELEASE = -1
SMALLEST_BYTES = 16 << 10
"""Smaller tensors are left out: together they fill less than a segment of the small pool."""


class Tensor:
    """A tensor of a program."""

    __slots__ = ("references", "size", "slot")

    def __init__(self, slot: int, size: int) -> None:
        self.slot = slot
        self.size = size
        self.references = 1

    def keep(self) -> "Tensor":
        """Return the tensor with one more reference to it."""
        self.references += 1
        return self


Backward = Callable[[Tensor], Tensor]
"""Runs an operation backward: takes the gradient of its output, which it releases, and returns that of its input."""


class Recorder:
    """Allocations and releases in their order.

    Args:
        first_slot: number of the first tensor; lower ones belong to the caller.
    """

    def __init__(self, first_slot: int = 0) -> None:
        self.ops: list[Op] = []
        self.slots = first_slot

    def new(self, size: float, stream: int = 0) -> Tensor:
        """Allocate a tensor."""
        tensor = Tensor(self.slots, round(size))
        self.slots += 1
        if tensor.size >= SMALLEST_BYTES:
            self.ops.append((tensor.slot, tensor.size, stream))
        return tensor

    def drop(self, *tensors: Tensor) -> None:
        """Give up a reference to each; a tensor without any is released."""
        for tensor in tensors:
            tensor.references -= 1
            if not tensor.references and tensor.size >= SMALLEST_BYTES:
                self.ops.append((tensor.slot, RELEASE, 0))

    def passing(self, *sizes: float) -> None:
        """Allocate tensors that exist at the same time, and release them."""
        self.drop(*[self.new(size) for size in sizes])

    def add_into(self, total: Tensor, addend: Tensor) -> Tensor:
        """Add in place."""
        self.drop(addend)
        return total

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        """Add into a tensor of its own."""
        total = self.new(max(one.size, other.size))
        self.drop(one, other)
        return total

    def cast_copy(self, tensor: Tensor, size: float) -> Tensor:
        """Return the tensor in another dtype, or itself once more; the caller's reference stays."""
        return tensor.keep() if round(size) == tensor.size else self.new(size)

    def cast(self, tensor: Tensor, size: float) -> Tensor:
        """Cast to another dtype; a cast to the same one is the tensor itself."""
        if round(size) == tensor.size:
            return tensor
        made = self.new(size)
        self.drop(tensor)
        return made


def live_bytes(ops: Iterable[Op]) -> dict[int, int]:
    """Return the bytes that operations leave allocated, by slot."""
    live: dict[int, int] = {}
    for slot, size, _ in ops:
        if size == RELEASE:
            live.pop(slot, None)
        else:
            live[slot] = size
    return live


def released_slots(ops: Iterable[Op]) -> set[int]:
    """Return the slots that operations release."""
    return {slot for slot, size, _ in ops if size == RELEASE}


# Norms and linear layers of a block as programs: what each allocates and releases, forward and backward.
#
# The order is that of autograd: a product's weight gradient, then its input's, then what it had saved is released.
# Under autocast an input in another dtype, a weight and a weight gradient are cast, each into a tensor of its own
# (ATen/autocast_mode.cpp); adapters follow ``LoraLayer.forward`` (peft, ``tuners/lora/layer.py``).


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """The weight of a linear layer on this rank, as it is multiplied."""

    elements: int
    trained: bool
    quantized: bool = False
    adapter: tuple[int, int] | None = None
    """Elements of the adapter's two matrices; None: it has none."""


@dataclass(slots=True, kw_only=True)
class Writer:
    """A recorder, with the figures of the block that it records."""

    rec: Recorder
    context: LayerContext
    gradient_width: int
    """Bytes per element of a weight's gradient when the backward pass has computed it."""
    graph: bool = True
    """The recorded operations have a graph: they save tensors for a backward pass."""
    casts: list[Tensor] = field(default_factory=list)
    """Autocast's casts of trained weights, which it keeps until the forward pass is over."""
    gradients: list[tuple[int, int]] = field(default_factory=list)
    """Slots and bytes of the weights' gradients."""
    passes: bool = False
    """Weights come from CPU RAM while their layer runs."""
    held: list[Tensor] = field(default_factory=list)
    """Tensors that variables of the block hold until it returns."""
    selected: set[int] = field(default_factory=set)
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
    casts_weight = widths.autocast and not weight.quantized
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
    own = x.keep() if round(wide) == x.size else rec.new(wide)
    low = rec.new(c * rank * w.tokens)
    out = rec.new(c * out_size * w.tokens)
    scaled = rec.new(out.size)
    rec.drop(out)
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
        return rec.cast(result, x.size)

    return add, backward


def readers(
    w: Writer, x: Tensor, weights: Sequence[Weight], in_size: float, out_sizes: Sequence[float]
) -> list[tuple[Tensor, Backward]]:
    """Return outputs and backward passes of linear layers that read one tensor."""
    return [linear(w, x, weight, in_size, out) for weight, out in zip(weights, out_sizes, strict=True)]
