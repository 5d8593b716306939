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
from ..activations.layer_context import LayerContext
from ..activations.trained_parts import LinearInput, linear_input_of
from .attention import attention
from .experts import experts
from .layers import Weight, Writer, norm
from .mlp import mlp
from .recorder import RELEASE, SMALLEST_BYTES, Backward, BlockProgram, Op, Recorder, Tensor, live_bytes, released_slots

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
