"""Buffers of FSDP1 on one rank, moment by moment (torch/distributed/fsdp/_runtime_utils.py, torch 2.13).

A unit is gathered before it runs and freed after it, the root's only at the end of the step. In the backward pass the
next unit is gathered ahead: before this one's gradients are computed (BACKWARD_PRE), beginning with the last one when
the root's output has its gradient; after them (BACKWARD_POST); or not at all. The gradient of a flat parameter covers
all of it, frozen parts too; autograd puts it together from those of the unit's parameters while the unit is still
gathered. What is reduced on another stream is no longer allocated, though its block is not free yet
(``record_stream``).
"""

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Literal

from ...job.rules import Widths
from ...model import Stage
from ..buffers import Buffers, Unit, largest_block, unit_of, weight_width
from .units import Part, UnitRule, flat_units

Prefetch = Literal["pre", "post", "none"]


@lru_cache(maxsize=256)
def flat_buffers(
    stage: Stage,
    widths: Widths,
    *,
    rule: UnitRule,
    share: float,
    shards: int,
    tied: bool,
    keeps: bool,
    prefetch: Prefetch,
    loss_in_forward: bool = True,
) -> Buffers:
    """Return the buffers of FSDP1.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        rule: what becomes a unit.
        share: bytes that a unit takes while it is gathered, for each of its bytes.
        shards: ranks over which it is sharded.
        tied: the stage's head is its embedding, whose gradient autograd holds from the head to the embedding.
        keeps: units stay gathered after the forward pass.
        prefetch: when the backward pass gathers the next unit.
        loss_in_forward: the root computes the loss, so that its hook gathers before the loss runs backward.
    """
    units, layers = flat_units(stage, rule), stage.layers
    reduce = 0 if shards == 1 and widths.reduce == widths.compute else widths.reduce  # 0: in place
    flat = partial(_flat, widths=widths, share=share, reduce=reduce)
    root, around, left = (flat(parts) for parts in (units.root, units.around, units.left))
    embedding, head, block = flat(units.embedding), flat(units.head), flat(units.block)
    inner = [flat(parts) for parts in (*units.inner, units.block) if parts]
    in_blocks = _times(left, layers)  # part of the unit around the blocks, or of the root's
    if units.around:
        around = _plus(around, in_blocks)
    else:
        root = _plus(root, in_blocks)
    largest = max(inner, key=lambda unit: unit.whole, default=flat(()))
    inside = block.whole + max((unit.whole for unit in inner if unit is not inner[-1] or not block.whole), default=0)
    kept = layers * sum(unit.whole for unit in inner) if keeps else 0
    always = root.whole + (around.whole + embedding.whole + head.whole if keeps else 0)
    ahead = largest.whole if prefetch == "pre" and not keeps else 0
    first = (around.whole or largest.whole) if ahead else 0  # what is gathered before the head runs backward
    early = (head.whole or first) if ahead else 0  # by the root's hook, if it has parameters
    behind = largest.whole if prefetch != "none" and not keeps else 0
    running = kept or inside
    over = 0 if keeps else around.whole
    own_head = 0 if keeps else head.whole
    outside = [
        held for held in stage.parameters if not held.group.layered and (tied or held is not stage.token_embedding)
    ]
    gradients = unit_of(((held, 1.0) for held in outside), widths).gradients
    late = 0 if head.whole else gradients  # until the root's are reduced
    apart = [(held, share) for held, share in largest_block(stage) if held.adapter and rule.adapters_apart]
    adapters = unit_of(apart, widths)
    computed, sharded = largest.gradients + adapters.gradients, widths.gradient / widths.compute / shards
    running += over + ahead
    return Buffers(
        forward=always + max(over + (kept or inside), embedding.whole),
        head_forward=always + kept,
        loss_backward=always + kept + (early if root.whole and loss_in_forward else 0),
        head_backward=always + kept + own_head + first + gradients,
        after_head=always + (kept or first) + gradients + (own_head + head.gradients if head.whole else 0),
        first_block=always + running + late,
        block=always + running + late,
        block_end=late
        + max(
            always + running + 2 * computed - round(computed * sharded),  # the parameters' gradients, and the flat one
            always + over + (kept or behind) + computed + largest.reduced,
        ),
        kept=kept,
        unreduced=computed or left.gradients,
        pending_blocks=layers if left.gradients else 0,
        pending_bytes=left.gradients,
        embedding=always
        + max(
            over + late + 2 * around.gradients,
            2 * root.gradients - round(root.gradients * sharded),
            root.gradients + root.reduced,
        ),
        pool=inside,
        largest_reduction=max(root.reduced, around.reduced, head.reduced),
    )


def _flat(parts: Iterable[Part], *, widths: Widths, share: float, reduce: int) -> Unit:
    """Return a flat parameter; 4-bit weights are gathered without their scales, which are no parameters.

    Args:
        parts: of the unit.
        widths: bytes per element.
        share: bytes that it takes while it is gathered, for each of its bytes.
        reduce: bytes per element of what its gradient is cast to and reduced into.
    """
    parts = list(parts)
    unit = unit_of(parts, widths)
    if unit.gradients:  # one gradient for all of it
        elements = sum(held.elements * share for held, share in parts)
        return Unit(whole=round(share * unit.whole), gradients=unit.whole, reduced=round(elements * reduce))
    packed = sum(held.elements * share * (weight_width(held, widths) % 0.5) for held, share in parts if held.quantized)
    return Unit(whole=round(share * (unit.whole - packed)), gradients=0, reduced=0)


def _times(unit: Unit, count: int) -> Unit:
    return Unit(whole=count * unit.whole, gradients=count * unit.gradients, reduced=count * unit.reduced)


def _plus(one: Unit, other: Unit) -> Unit:
    return Unit(
        whole=one.whole + other.whole,
        gradients=one.gradients + other.gradients,
        reduced=one.reduced + other.reduced,
    )
