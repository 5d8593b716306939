"""The experts of a block as programs: in one tensor each, or as linear layers that run one after the other."""

from collections.abc import Sequence

import msgspec

from ...common.records import replace
from .layers import Weight, Writer
from .mlp import mlp
from .recorder import Backward, Tensor

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
