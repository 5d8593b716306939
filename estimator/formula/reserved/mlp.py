"""The MLP of a block as a program."""

from collections.abc import Sequence

from ..activations.block import AUTOCAST_ACTIVATION_TENSORS, activation_tensors
from .attention import sum_of_gradients
from .layers import Weight, Writer, linear, summed
from .recorder import Backward, Tensor


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
