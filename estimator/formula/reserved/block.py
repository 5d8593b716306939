"""A block as programs: its forward pass with and without a graph, and its backward pass.

The programs have the order and the sizes of real operations; what a block saves in all is the closed form's figure,
so that a part that no program has (masks, latents, relative positions) is one more tensor.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Literal

import msgspec

from ...common.records import replace
from ...model.rank_share import LocalParameters, Stage
from ..layer_context import LayerContext, LinearInput, linear_input_of
from ..saved_activations import AUTOCAST_ACTIVATION_TENSORS, activation_tensors, score_masks

# Recorder of a program's allocations and releases: tensors counted by their references, as torch counts them.


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


# Attention as a program: projections, rotation, the kernel, and the output projection.
#
# Sources: transformers' ``eager_attention_forward`` and ``apply_rotary_pos_emb``; the fused kernel's backward pass
# needs an fp32 accumulator for the queries' gradient and gradients of keys and values of all heads (flash_api.cpp).


def attention(w: Writer, x: Tensor, inputs: Sequence[Weight], output: Weight) -> tuple[Tensor, Backward]:
    """Return the output of attention, and its backward pass. The input is released."""
    rec, context, c = w.rec, w.context, w.compute
    arch, split, tokens = context.arch, context.tensor_parallel, w.tokens
    sizes = [arch.query_size / split, arch.key_size / split, arch.value_size / split]
    fused = len(inputs) == 1
    made = [
        linear(w, x, weight, arch.hidden, sum(sizes) if fused else size)
        for weight, size in zip(inputs, (sizes[0],) if fused else sizes, strict=False)
    ]
    tensors = [each for each, _ in made]
    w.selected.update(each.slot for each in (tensors[0], tensors[-1]))
    norms: list[Backward] = []
    if arch.qk_norm != "none" and not fused:
        for at in (0, 1):
            normed, back = norm(w, tensors[at], sizes[at], trained=context.parts.query_norms)
            rec.drop(tensors[at])
            tensors[at] = normed
            norms.append(back)
    given = w.projected(inputs[0])
    rotary = not arch.positions and not arch.relative_buckets
    width = 4 if context.widths.mixed and context.widths.autocast else c
    heads = list(tensors)
    # one function projects and attends, but in encoders, where the projection follows in another module
    variables = [tensors[0].keep()] if fused and context.prompts else []
    if rotary:
        rotated = [_rotate(rec, width * tokens * size, given * tokens * size) for size in sizes[:2]]
        if not fused:
            rec.drop(*tensors[:2])
        if width != c:
            cast = [rec.new(c * tokens * size) for size in sizes[:2]]
            rec.drop(*rotated)
            rotated = cast
        values = tensors[-1] if given == c else rec.cast(tensors[-1], c * tokens * sizes[2])
        heads = [*rotated, values]  # a fused layer's values are a view of its output
    if context.caches and not w.graph:  # copies, as ``DynamicLayer.update`` concatenates
        cached = [rec.new(each.size) for each in heads[1:]]
        rec.drop(*heads[1:])
        heads = [heads[0], *(each.keep() for each in cached)]
    kernel = _written_scores if context.eager_attention or context.math_attention else _fused_kernel
    if context.prompts and not context.sums_before_norm:
        variables += [each.keep() for each in heads]
    mixed, kernel_backward = kernel(w, heads, sizes)
    result, out_backward = linear(w, mixed, output, arch.attention_output_size / split, arch.hidden)
    result = summed(w, result, arch.hidden)
    rec.drop(*(x, *variables, mixed) if context.prompts else (mixed, x))

    def backward(gradient: Tensor) -> Tensor:
        gradients = kernel_backward(out_backward(gradient))
        if rotary:
            for at in (1, 0):
                gradients[at] = _rotate_backward(rec, gradients[at], width * tokens * sizes[at])
                gradients[at] = rec.cast(gradients[at], given * tokens * sizes[at])
            gradients[2] = gradients[2] if fused else rec.cast(gradients[2], given * tokens * sizes[2])
        for at, back in reversed(list(enumerate(norms))):
            gradients[at] = back(gradients[at])
        if fused:
            whole = rec.new(c * tokens * sum(sizes))
            rec.drop(*gradients)
            return made[0][1](whole)
        return sum_of_gradients(w, gradients, [back for _, back in made])

    return result, backward


def sum_of_gradients(w: Writer, gradients: Sequence[Tensor], backwards: Sequence[Backward]) -> Tensor:
    """Run layers that read one tensor backward, the last one first; return the sum of their input's gradients."""
    *others, (gradient, back) = zip(gradients, backwards, strict=True)
    total, summed = back(gradient), False
    for gradient, back in reversed(others):
        found = back(gradient)
        if w.context.widths.autocast or summed:
            total = w.rec.add_into(total, found)
        else:  # the first sum of products' outputs is a tensor of its own
            total, summed = w.rec.add(total, found), True
    return total


def _rotate(rec: Recorder, wide: float, plain: float) -> Tensor:
    direct = rec.new(wide)
    half = rec.new(plain / 2)
    turned = rec.new(plain)
    rec.drop(half)
    product = rec.new(wide)
    rec.drop(turned)
    result = rec.new(wide)
    rec.drop(direct, product)
    return result


def _rotate_backward(rec: Recorder, gradient: Tensor, wide: float) -> Tensor:
    plain = gradient.size
    grown = rec.cast(gradient, wide)
    turned = rec.cast(rec.new(wide), plain)
    half = rec.new(plain / 2)
    whole = rec.new(plain)
    rec.drop(half)
    other = rec.new(plain)
    rec.drop(turned, other)
    direct = rec.cast(rec.new(wide), plain)
    rec.drop(grown, direct)
    return whole


def _fused_kernel(w: Writer, heads: Sequence[Tensor], sizes: Sequence[float]):  # type: ignore[no-untyped-def]
    rec, context, c, tokens = w.rec, w.context, w.compute, w.tokens
    arch, split = context.arch, context.tensor_parallel
    output = rec.new(c * tokens * arch.attention_output_size / split)
    sums = rec.new(4 * tokens * arch.heads / split)
    w.selected.update((output.slot, sums.slot))
    saved = [*heads, output.keep(), sums] if w.graph else []
    if not w.graph:
        rec.drop(*heads, sums)

    def backward(gradient: Tensor) -> list[Tensor]:
        found = [rec.new(c * tokens * size) for size in sizes]
        delta = rec.new(4 * tokens * arch.heads / split)
        accumulator = rec.new(4 * tokens * sizes[0])
        expanded = [rec.new(c * tokens * arch.heads * arch.value_head_dim / split) for _ in range(2)]
        rec.drop(delta, accumulator, *reversed(expanded), gradient, *saved)
        return found

    return output, backward


def _written_scores(w: Writer, heads: Sequence[Tensor], sizes: Sequence[float]):  # type: ignore[no-untyped-def]
    """Attention that writes its scores, one per pair of positions."""
    if w.context.prompts:
        return _scores_of_prompts(w, heads), lambda gradient: [gradient]
    rec, context, c, tokens = w.rec, w.context, w.compute, w.tokens
    arch, split = context.arch, context.tensor_parallel
    pairs = arch.heads * context.length * tokens / split
    per_head = arch.heads * arch.head_dim / split
    grouped = arch.kv_heads != arch.heads
    expanded = [rec.new(c * tokens * per_head) if grouped else each.keep() for each in heads[1:]]
    rec.drop(*heads[1:])
    raw = rec.new(c * pairs)
    scores = rec.new(c * pairs)  # scaled, or with the mask
    rec.drop(raw)
    wide = 4 * pairs
    low = arch.rules.softmax_in_score_dtype and not context.widths.mixed
    probabilities = rec.new(c * pairs if low else wide)
    factor = rec.new(c * pairs) if probabilities.size != round(c * pairs) else probabilities.keep()
    rec.drop(scores)
    output = rec.new(c * tokens * arch.attention_output_size / split)
    saved = [heads[0], *expanded, probabilities, factor] if w.graph else []
    if not w.graph:
        rec.drop(heads[0], *expanded, probabilities, factor)
    if w.graph:
        transposed = rec.new(output.size)
        rec.drop(output)
        output = transposed

    def backward(gradient: Tensor) -> list[Tensor]:
        first = rec.new(c * pairs)
        values = rec.new(c * tokens * per_head)
        rec.drop(gradient)
        grown = rec.cast(first, probabilities.size)
        result = rec.new(grown.size)
        rec.drop(grown)
        narrow = rec.cast(result, c * pairs)
        queries, keys = rec.new(c * tokens * sizes[0]), rec.new(c * tokens * per_head)
        rec.drop(narrow, *saved)
        found = [queries]
        for each, size in ((keys, sizes[1]), (values, sizes[2])):
            found.append(rec.cast(each, c * tokens * size))
        return found

    return output, backward


def _scores_of_prompts(w: Writer, heads: Sequence[Tensor]) -> Tensor:
    """Return the output of attention that writes its scores and saves none of them; the heads are released.

    Source: ``eager_attention_forward`` of transformers 5's models; gpt_oss joins its sinks to the scores.
    """
    rec, context, c = w.rec, w.context, w.compute
    arch, rules = context.arch, context.arch.rules
    pairs = arch.heads * context.length * w.tokens / context.tensor_parallel
    per_head = arch.heads * arch.head_dim / context.tensor_parallel
    grouped = arch.kv_heads != arch.heads
    expanded = [rec.new(c * w.tokens * per_head) if grouped else each.keep() for each in heads[1:]]
    scores = rec.new(c * pairs)
    for _ in range((2 if score_masks(context) else 1) + (3 if arch.attention_softcap else 0)):  # scaled, capped, masked
        after = rec.new(c * pairs)
        rec.drop(scores)
        scores = after
    joined: list[Tensor] = []
    if rules.attention_sinks:
        first = rec.new(c * pairs)
        joined.append(rec.new(c * pairs))  # less its maximum
        rec.drop(first)
    low = rules.softmax_in_score_dtype or rules.attention_sinks or not context.eager_attention
    wide = c * pairs if low else 4 * pairs
    source = rec.cast_copy(scores, wide)
    probabilities = rec.new(wide)
    rec.drop(source)
    factor = rec.cast_copy(probabilities, c * pairs)
    rec.drop(scores, probabilities)
    mixed = rec.new(c * w.tokens * arch.attention_output_size / context.tensor_parallel)
    output = rec.new(mixed.size)
    rec.drop(*heads, *expanded, *joined, mixed)
    w.held.append(factor)
    return output


# The MLP of a block as a program.


def mlp(
    w: Writer, x: Tensor, inputs: Sequence[Weight], output: Weight, size: float, *, own: bool = True
) -> tuple[Tensor, Backward]:
    """Return the output of an MLP of that size, and its backward pass.

    Args:
        w: the block's.
        x: its input.
        inputs: the layers that read it.
        output: the last layer.
        size: elements per token between them.
        own: the input is released.
    """
    rec, context = w.rec, w.context
    hidden, size = context.arch.hidden, size / context.tensor_parallel
    gated = context.arch.gated
    first, *others = inputs
    one = w.projected(first) * w.tokens * size
    fused = gated and not others
    made = [linear(w, x, first, hidden, 2 * size if fused else size)]
    between = made[0][0]
    variables = [between.keep()] if fused and context.prompts else []  # until the module's function returns
    activated, inner_saved, activation_back = _activation(w, between, one)
    if context.prompts:
        rec.drop(*inner_saved)
    product = activated
    kept: list[Tensor] = []
    if gated:
        made += [linear(w, x, each, hidden, size) for each in others]
        product = rec.new(one)
        kept = [activated, *(each for each, _ in made[1:])]
    if context.prompts:
        rec.drop(*kept)
    result, out_backward = linear(w, product, output, size, hidden)
    w.selected.update((between.slot, result.slot))
    result = summed(w, result, hidden)
    if context.prompts and own:
        rec.drop(x)
    rec.drop(*variables, product)
    if not (w.graph or context.prompts):
        rec.drop(*inner_saved, *kept)
    if own and not context.prompts:
        rec.drop(x)

    def backward(gradient: Tensor) -> Tensor:
        passing = out_backward(gradient)
        up: list[Tensor] = []
        if gated:
            parts = [rec.new(one), rec.new(one)]
            rec.drop(passing, *reversed(kept))
            passing, other = parts[1], parts[0]
            up = [other]
        if up and not fused:  # it was computed last
            total = made[1][1](up[0])
            found = made[0][1](activation_back(passing))
            return rec.add_into(total, found) if context.widths.autocast else rec.add(total, found)
        inner = activation_back(passing)
        if up:
            whole = rec.new(2 * one)
            rec.drop(*up, inner)
            inner = whole
        return sum_of_gradients(w, [inner], [made[0][1]])

    return result, backward


def _activation(w: Writer, x: Tensor, size: float) -> tuple[Tensor, list[Tensor], Backward]:
    """Return the activation function's output, what it saves, and its backward pass. The input is released.

    One kernel saves its input. transformers' ``gelu_new`` is a chain of powers and products, in fp32 under autocast.
    """
    rec, context = w.rec, w.context
    if context.arch.activation not in AUTOCAST_ACTIVATION_TENSORS or context.framework.fused_activations:
        extra = [rec.new(size) for _ in range(activation_tensors(context) - 1)]
        output = rec.new(size)
        saved = [x, *extra]

        def one_kernel(gradient: Tensor) -> Tensor:
            result = rec.new(size)
            rec.drop(gradient, *saved)
            return result

        return output, saved, one_kernel
    wide = size * (4 // w.compute if context.widths.mixed else 1)
    half = rec.new(size)
    power_of = x if wide == size else rec.new(wide)
    if power_of is not x:
        rec.drop(x)
    chain = rec.new(wide)
    for _ in range(3):
        after = rec.new(wide)
        rec.drop(chain)
        chain = after
    tanh = rec.new(wide)
    rec.drop(chain)
    factor = rec.new(wide)
    kept = [tanh] if w.graph else []
    if not w.graph:
        rec.drop(tanh)
    output = rec.cast(rec.new(wide), size)
    saved = [power_of, half, *kept, factor]

    def backward(gradient: Tensor) -> Tensor:
        grown = rec.cast(gradient, wide)
        of_half, of_factor = rec.new(size), rec.new(wide)
        rec.drop(grown, factor, half)
        inner = rec.new(wide)
        rec.drop(of_factor, tanh)
        scaled = rec.new(wide)
        rec.drop(inner)
        power = rec.new(wide)
        rec.passing(wide)
        rec.drop(scaled, power_of)
        rec.drop(rec.cast(power, size))
        return of_half

    return output, saved, backward


# The experts of a block as programs: in one tensor each, or as linear layers that run one after the other.


_MOST_CALLS = 16
"""Experts that a program runs one by one; of more of them, each call stands for several."""


def experts(
    w: Writer, x: Tensor, gate_up: int, down: int, *, trained: bool, shared: tuple[Sequence[Weight], Weight] | None
) -> tuple[Tensor, Backward]:
    """Return the output of routed experts and of shared ones.

    Every token is copied once per expert that it is sent to (transformers, ``integrations/moe.py``).
    """
    if w.context.separate_experts:
        return _one_by_one(w, x, gate_up, down, trained=trained, shared=shared)
    if w.context.prompts:
        return _of_prompts(w, x, (gate_up, down), shared)
    rec, context = w.rec, w.context
    arch, wide = context.arch, context.expert_width
    rows = w.tokens * arch.experts_per_token / context.tensor_parallel
    router = rec.new(12 * arch.experts * w.tokens)
    permuted = rec.new(wide * rows * arch.hidden)
    factors = rec.new(wide * rows * arch.expert_mlp_size * (2 if arch.gated else 1))
    activated = rec.new(wide * rows * arch.expert_mlp_size)
    product = rec.new(wide * rows * arch.expert_mlp_size)
    outputs = rec.new(wide * rows * arch.hidden)
    weighted = rec.new(wide * rows * arch.hidden)
    result = rec.new(context.widths.compute * w.tokens * arch.hidden)
    rec.drop(weighted)
    saved = [router, permuted, factors, activated, product, outputs]
    if not w.graph:
        rec.drop(*saved)
    beside = None
    if shared is not None:
        output, beside = mlp(w, x, shared[0], shared[1], arch.shared_mlp_size, own=False)
        result = rec.add(result, output)
    rec.drop(x)
    source = x.size

    def backward(gradient: Tensor) -> Tensor:
        other = beside(gradient.keep()) if beside is not None else None
        spread = rec.new(wide * rows * arch.hidden)
        ungated = rec.new(wide * rows * arch.hidden)
        rec.drop(spread, gradient, outputs)
        if trained:
            w.gradient(down, w.gradient_width)
        inner = rec.new(product.size)
        rec.drop(ungated, product)
        parts = rec.new(factors.size)
        rec.drop(inner, activated, factors)
        if trained:
            w.gradient(gate_up, w.gradient_width)
        back = rec.new(permuted.size)
        rec.drop(parts, permuted, router)
        total = rec.new(source)
        rec.drop(back)
        return total if other is None else rec.add_into(total, other)

    return result, backward


def _of_prompts(
    w: Writer, x: Tensor, tensors: Sequence[int], shared: tuple[Sequence[Weight], Weight] | None
) -> tuple[Tensor, Backward]:
    """Return the output of experts that run prompts: what a variable does not hold is released at once.

    ``grouped_mm_experts_forward`` of transformers 5.23: tensor parallelism by plan splits the experts' factors only,
    and sums the ranks' outputs in place.
    """
    rec, context = w.rec, w.context
    arch, wide = context.arch, context.expert_width
    whole = w.tokens * arch.experts_per_token
    rows, split = (whole, context.tensor_parallel) if context.follows_plan else (whole / context.tensor_parallel, 1)
    inner = wide * rows * arch.expert_mlp_size / split
    weighted = (4 if arch.rules.fp32_routing else wide) * rows * arch.hidden
    passing = [rec.new(w.compute * elements) for elements in tensors] if w.passes else []
    permuted = rec.new(wide * rows * arch.hidden)
    factors = rec.new(inner * (2 if arch.gated else 1))
    activated = rec.new(inner)
    product = rec.new(inner) if arch.gated else activated.keep()
    rec.drop(factors, activated)
    outputs = rec.new(wide * rows * arch.hidden)
    rec.drop(product)
    sorted_rows = rec.new(weighted)
    in_order = rec.new(weighted)
    rec.drop(sorted_rows)
    total = rec.new(weighted * w.tokens / whole)
    result = rec.cast_copy(total, context.widths.compute * w.tokens * arch.hidden)
    rec.drop(permuted, outputs, in_order, total, *passing)
    if shared is not None:
        output, _ = mlp(w, x, shared[0], shared[1], arch.shared_mlp_size, own=False)
        result = rec.add(result, output)
    rec.drop(x)
    return result, lambda gradient: gradient


def _one_by_one(
    w: Writer, x: Tensor, gate_up: int, down: int, *, trained: bool, shared: tuple[Sequence[Weight], Weight] | None
) -> tuple[Tensor, Backward]:
    """Return the output of experts that are MLPs of linear layers, each called with its share of the tokens.

    Source: transformers 4.48, ``MixtralSparseMoeBlock``: the weighting keeps an expert's result, and ``index_add_`` the
    weighted one; the gradient of the tokens that were picked out is a whole tensor for each expert.
    """
    rec, context = w.rec, w.context
    arch, count = context.arch, context.arch.experts
    calls = min(count, _MOST_CALLS)
    rows = -(-w.tokens * arch.experts_per_token // calls)
    own = replace(w, context=msgspec.structs.replace(context, micro_batch=1, length=rows))
    quantized, factors = context.quantization is not None, 2 if arch.gated else 1
    inputs = [Weight(elements=gate_up // count // factors, trained=trained, quantized=quantized)] * factors
    last = Weight(elements=down // count, trained=trained, quantized=quantized)
    router = rec.new(12 * count * w.tokens)
    result = rec.new(context.widths.compute * w.tokens * arch.hidden)
    made: list[tuple[list[Tensor], Backward]] = []
    for _ in range(calls):
        picked = rec.new(x.size * rows / w.tokens)
        found, back = mlp(own, picked, inputs, last, arch.expert_mlp_size)
        weighted = rec.new(found.size)
        if not w.graph:
            rec.drop(found, weighted)
        made.append(([found, weighted], back))
    beside = None
    if shared is not None:
        output, beside = mlp(w, x, shared[0], shared[1], arch.shared_mlp_size, own=False)
        result = rec.add(result, output)
    if not w.graph:
        rec.drop(router)
    rec.drop(x)
    source = x.size

    def backward(gradient: Tensor) -> Tensor:
        total = beside(gradient.keep()) if beside is not None else None
        for saved, back in reversed(made):
            spread = rec.new(saved[1].size)
            rec.drop(saved[1])
            inner = rec.new(saved[0].size)
            rec.passing(saved[0].size)  # of the weights
            rec.drop(spread, saved[0])
            picked = back(inner)
            whole = rec.new(source)
            rec.drop(picked)
            total = whole if total is None else rec.add_into(total, whole)
        rec.drop(gradient, router)
        return total if total is not None else rec.new(source)

    return result, backward


INPUT, OUTPUT, GRADIENT = 0, 1, 2
"""Slots of the block's input, which is the output of the block before it, and of the gradient of its output."""
_FIRST_SLOT = 3
_CLOSE = 0.01
"""Share of what a block saves by the closed form up to which a program that saves another amount stays as it is."""
Kind = Literal["dense", "moe", "cross"]
"""``cross``: a decoder's block with cross attention."""
Body = Callable[[Tensor], tuple[Tensor, Backward]]
"""Attention, MLP or experts: releases its input; returns its output, and its backward pass."""


class BlockWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The linear layers of one block, by what they read."""

    attention_in: tuple[Weight, ...]
    attention_out: Weight
    mlp_in: tuple[Weight, ...]
    mlp_out: Weight
    shared: tuple[tuple[Weight, ...], Weight] | None
    gate_up: int
    """Elements of the experts' first weights, and of their last."""
    down: int
    experts_trained: bool
    rest: tuple[tuple[int, bool], ...]
    """Elements of trained parameters that no program computes a gradient of, and whether they are adapters."""


class BlockProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations and releases of one block; its output has the slot ``OUTPUT``."""

    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    slots: int
    gradients: tuple[tuple[int, int], ...]
    """Slots and bytes of the weights' gradients, which ``backward`` leaves allocated."""
    selected: frozenset[int] = frozenset()
    """Slots of what selective checkpointing keeps."""
    casts: tuple[int, ...] = ()
    """Slots of autocast's casts, which stay until the forward pass is over."""
    saved_bytes: int
    """Bytes that the forward pass leaves allocated, without casts."""
    begins: int = 0
    """Operations of ``backward`` before its first layer runs backward: those of the loss."""
    held: int | None = None
    """Slot of the outputs that a variable of the training loop holds, which no program releases."""
    replaces: int = 0
    """Operations of ``forward`` after which the variable takes these outputs, and drops those before."""
    returned: int | None = None
    """Slot of outputs that are released once they are cast to fp32, after the forward pass; None: there are none."""


def record_block(
    context: LayerContext,
    weights: BlockWeights,
    kind: Kind,
    *,
    saved_bytes: float,
    gradient_width: int,
    graph: bool,
    keeps_input: bool = False,
    passes: bool = False,
) -> BlockProgram:
    """Return the programs of a block.

    Args:
        context: of the block.
        weights: its linear layers.
        kind: of block.
        saved_bytes: what it saves by the closed form.
        gradient_width: bytes per element of the gradients that its backward pass computes.
        graph: False: only a forward pass that saves nothing but its input.
        keeps_input: the caller releases the input.
        passes: its weights come from CPU RAM while their layers run.
    """
    filler = 0.0
    for _ in range(2):
        rec = Recorder(_FIRST_SLOT)
        w = Writer(rec=rec, context=context, gradient_width=gradient_width, graph=graph, passes=passes)
        forward, backward, kept = _record(w, weights, kind, filler)
        if not graph or kept > saved_bytes * (1 - _CLOSE) or filler:
            break
        filler = saved_bytes - kept
    if graph and kept > saved_bytes * (1 + _CLOSE):
        forward, backward = _scaled(forward, backward, saved_bytes / kept)
    if keeps_input:
        forward, backward = without_input(forward), without_input(backward)
    casts = tuple(tensor.slot for tensor in w.casts if tensor.size >= SMALLEST_BYTES)
    return replace(w.program(forward, backward, round(saved_bytes)), selected=frozenset(w.selected), casts=casts)


def selective_programs(plain: BlockProgram, graph: BlockProgram) -> tuple[BlockProgram, BlockProgram]:
    """Return the programs where the forward pass keeps what is selected, and does not compute it again.

    Args:
        plain: saves nothing but its input.
        graph: is recomputed.
    """
    selected = plain.selected & graph.selected
    kept = tuple(op for op in plain.forward if op[0] not in selected or op[1] != RELEASE)
    again = tuple(op for op in graph.forward if op[0] not in selected or op[1] == RELEASE)
    return replace(plain, forward=kept), replace(graph, forward=again)


def _record(w: Writer, weights: BlockWeights, kind: Kind, filler: float) -> tuple[list[Op], list[Op], int]:
    rec, context = w.rec, w.context
    residual = max(SMALLEST_BYTES, context.widths.residual * context.arch.hidden * w.tokens / context.residual_ranks)
    x = Tensor(INPUT, round(residual))
    w.held.append(x.keep())  # by a variable of the model, until the block returns
    extra = rec.new(filler)  # of no bytes where nothing is missing: slots are numbered alike
    halves: list[Body] = [lambda y: attention(w, y, weights.attention_in, weights.attention_out)]
    if kind == "cross":
        halves *= 2
    halves.append(lambda y: _mlp(w, y, weights, kind))
    if context.arch.parallel_residual:
        output, backward = _parallel(w, x, halves)
    else:
        backwards = []
        output = x
        for half in halves:
            output, back = _half(w, output, half)
            backwards.append(back)

        def backward(gradient: Tensor) -> None:
            for back in reversed(backwards):
                back(gradient)

    rec.drop(*w.held)
    forward = [(OUTPUT if slot == output.slot else slot, size, stream) for slot, size, stream in rec.ops]
    live = live_bytes(forward)
    # an fp32 residual stream is saved by the norm that reads it: the output stands for the input
    kept = sum(size for slot, size in live.items() if slot != OUTPUT or INPUT not in released_slots(forward))
    kept -= sum(tensor.size for tensor in w.casts) + _cast_bytes(w, weights, kind)
    rec.ops = []
    if w.graph:
        backward(Tensor(GRADIENT, output.size))
        rec.drop(extra)
        for elements, adapter in weights.rest:
            w.gradient(elements, context.widths.adapter if adapter else w.gradient_width)
    return forward, rec.ops, round(kept)


def _mlp(w: Writer, x: Tensor, weights: BlockWeights, kind: Kind) -> tuple[Tensor, Backward]:
    if kind != "moe":
        return mlp(w, x, weights.mlp_in, weights.mlp_out, w.context.arch.mlp_size)
    return experts(w, x, weights.gate_up, weights.down, trained=weights.experts_trained, shared=weights.shared)


def _half(w: Writer, x: Tensor, body: Body) -> tuple[Tensor, Callable[[Tensor], None]]:
    """Return the output of half a block, and its backward pass, which adds to the residual stream's gradient.

    The norm comes before the body, with four norms per layer after it too; an encoder's comes after the sum.
    """
    rec, context = w.rec, w.context
    arch = context.arch
    size, trained = arch.hidden / context.residual_ranks, context.parts.norms > 0
    if context.sums_before_norm:
        found, body_back = body(x.keep())
        total = rec.new(x.size)
        rec.drop(found, x)
        output, norm_back = norm(w, total, size, trained=trained)
        rec.drop(total)

        def after_sum(gradient: Tensor) -> None:
            inner = norm_back(gradient.keep())
            rec.drop(rec.add_into(inner, body_back(rec.cast_copy(inner, found.size))))

        return output, after_sum
    y, first_back = norm(w, x, size, trained=trained)
    found, body_back = body(y)
    last_back: Backward | None = None
    if arch.norms_per_layer == 4:
        normed, last_back = norm(w, found, size, trained=trained)
        rec.drop(found)
        found = normed
    output = rec.new(x.size)
    rec.drop(found, x)

    def backward(gradient: Tensor) -> None:
        passing = rec.cast_copy(gradient, found.size)
        if last_back is not None:
            passing = last_back(passing)
        rec.add_into(gradient, first_back(body_back(passing)))

    return output, backward


def _parallel(w: Writer, x: Tensor, halves: Sequence[Body]) -> tuple[Tensor, Callable[[Tensor], None]]:
    """Return the output of a block whose attention and MLP read the same input, and its backward pass."""
    rec, arch = w.rec, w.context.arch
    size, trained = arch.hidden / w.context.residual_ranks, w.context.parts.norms > 0
    y, norm_back = norm(w, x, size, trained=trained)
    z, second_back = (y.keep(), None) if arch.norms_per_layer == 1 else norm(w, x, size, trained=trained)
    first, first_body = halves[0](y)
    second, second_body = halves[1](z)
    output = rec.new(x.size)
    rec.drop(first, second, x)

    def backward(gradient: Tensor) -> None:
        inner = second_body(rec.cast_copy(gradient, second.size))
        if second_back is not None:
            rec.add_into(gradient, second_back(inner))
            inner = first_body(rec.cast_copy(gradient, first.size))
        else:
            inner = rec.add_into(inner, first_body(rec.cast_copy(gradient, first.size)))
        rec.add_into(gradient, norm_back(inner))

    return output, backward


def without_input(ops: Iterable[Op]) -> list[Op]:
    """Return operations that do not release the block's input."""
    return [op for op in ops if op[0] != INPUT]


def _cast_bytes(w: Writer, weights: BlockWeights, kind: Kind) -> int:
    """Return the bytes of autocast's weight casts that the graph holds."""
    if not (w.graph and w.context.widths.autocast):
        return 0
    used = [*weights.attention_in, weights.attention_out]
    if kind == "cross":
        used *= 2
    used += [*weights.mlp_in, weights.mlp_out] if kind != "moe" else []
    if kind == "moe" and weights.shared:
        used += [*weights.shared[0], weights.shared[1]]
    return sum(w.compute * each.elements for each in used if not each.quantized)


def _scaled(forward: Sequence[Op], backward: Sequence[Op], factor: float) -> tuple[list[Op], list[Op]]:
    """Scale what is saved, where the programs save more than the closed form says."""
    saved = set(live_bytes(forward)) - {OUTPUT}
    scaled = [
        (slot, round(size * factor), s) if slot in saved and size > 0 else (slot, size, s) for slot, size, s in forward
    ]
    return scaled, list(backward)


@lru_cache(maxsize=128)
def block_weights(stage: Stage, kind: Kind) -> BlockWeights:
    """Return the linear layers of one block of a kind."""
    layered = [held for held in stage.parameters if held.group.layered]
    adapters: dict[str, list[int]] = {}
    for held in layered:
        if held.adapter:
            adapters.setdefault(held.group.name.partition(".lora_")[0], []).append(_of_one(held))
    found: dict[LinearInput, dict[str, Weight]] = {}
    shared: dict[LinearInput, dict[str, Weight]] = {}
    routed: list[LocalParameters] = []
    rest: list[tuple[int, bool]] = []
    for held in layered:
        name = held.group.name.removesuffix(".weight")
        if held.adapter or held.copied:
            if name.partition(".lora_")[0] not in adapters or held.copied:
                rest.append((_of_one(held), held.adapter))
            continue
        if held.group.role == "expert":
            routed.append(held)
            continue
        reads = linear_input_of(held.group.name) if held.group.linear else None
        if reads is None:
            if held.trainable:
                rest.append((_of_one(held), False))
            continue
        pair = adapters.get(name)
        weight = Weight(
            elements=_of_one(held),
            trained=held.trainable,
            quantized=held.quantized,
            adapter=(pair[0], pair[-1]) if pair else None,
        )
        into = shared if "shared_expert" in name else found
        into.setdefault(reads, {})[name.rpartition(".")[2]] = weight
    nothing = Weight(elements=0, trained=False)
    heads = _ordered(found.get("attention_in", {}))
    experts_of_layer = sorted(held.elements // max(1, held.tensors) * _per_layer(held, stage) for held in routed)
    return BlockWeights(
        attention_in=_three(heads) or (nothing,) * 3,
        attention_out=next(iter(found.get("attention_out", {}).values()), nothing),
        mlp_in=_ordered(found.get("mlp_in", {})) or (nothing,),
        mlp_out=next(iter(found.get("mlp_out", {}).values()), nothing),
        shared=(
            (_ordered(shared["mlp_in"]), next(iter(shared["mlp_out"].values())))
            if kind == "moe" and shared.get("mlp_in") and shared.get("mlp_out")
            else None
        ),
        gate_up=sum(experts_of_layer[1:]) or 0,
        down=experts_of_layer[0] if experts_of_layer else 0,
        experts_trained=any(held.trainable for held in routed),
        rest=tuple(rest),
    )


def _per_layer(held: LocalParameters, stage: Stage) -> int:
    return max(1, round(held.tensors / max(1, stage.layers))) if held.tensors > stage.layers else 1


def _of_one(held: LocalParameters) -> int:
    return -(-held.elements // max(1, held.tensors)) or prod(held.group.shape)


def _three(heads: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """Return one fused weight, or those of queries, keys and values."""
    if len(heads) in (0, 1, 3):
        return heads
    return (heads[0], heads[-1], heads[-1]) if len(heads) == 2 else heads[:3]


_FIRST = ("q", "k", "v", "gate", "wi_0", "up", "wi_1")


def _ordered(weights: dict[str, Weight]) -> tuple[Weight, ...]:
    """Return the weights in the order in which transformers' modules run them."""

    def place(name: str) -> int:
        return next((at for at, start in enumerate(_FIRST) if name.startswith(start)), len(_FIRST))

    return tuple(weights[name] for name in sorted(weights, key=place))
