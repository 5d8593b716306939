"""Attention as a program: projections, rotation, the kernel, and the output projection.

Sources: transformers' ``eager_attention_forward`` and ``apply_rotary_pos_emb``; the fused kernel's backward pass
needs an fp32 accumulator for the queries' gradient and gradients of keys and values of all heads (flash_api.cpp).
"""

from collections.abc import Sequence

from ..activations.temporary import score_masks
from .layers import Weight, Writer, linear, norm, summed
from .recorder import Backward, Recorder, Tensor


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
