"""Units of parameters that are gathered and reduced together, in bytes; the largest block of a model."""

from collections.abc import Iterable

from msgspec import Struct

from ...job.rules import Widths
from ...model import LocalParameters, ParameterGroup, Stage


class Unit(Struct, frozen=True, kw_only=True):
    """Parameters that are gathered together, in bytes."""

    whole: int
    """Gathered."""
    gradients: int
    """Their gradients as they are computed."""
    reduced: int
    """Their gradients in the dtype in which they are reduced."""


NO_UNIT = Unit(whole=0, gradients=0, reduced=0)


def whole_unit(parameters: Iterable[LocalParameters], widths: Widths) -> Unit:
    """Return a unit of whole parameter groups."""
    return unit_of(((held, 1.0) for held in parameters), widths)


def unit_of(parts: Iterable[tuple[LocalParameters, float]], widths: Widths) -> Unit:
    """Return a unit of parameter groups, each with the share of it that the unit holds."""
    whole = gradients = reduced = 0.0
    casts = widths.mixed or widths.compute != widths.weight
    for held, share in parts:
        elements = held.elements * share
        width = weight_width(held, widths) if held.quantized or not casts else widths.compute
        whole += elements * width
        if held.trainable:
            gradients += elements * width
            reduced += elements * widths.reduce
    return Unit(whole=round(whole), gradients=round(gradients), reduced=round(reduced))


def largest_block(stage: Stage) -> list[tuple[LocalParameters, float]]:
    """Return the parameters of the largest block, each with its share of its group.

    An encoder's blocks are smaller than those of its decoder, and dense layers smaller than those with experts.
    """
    stacks: dict[str, list[LocalParameters]] = {}
    for held in stage.parameters:
        if held.group.layered:
            stacks.setdefault(held.group.name.partition(".*.")[0], []).append(held)
    return max((_block(stack, stage.layers) for stack in stacks.values()), key=elements_of, default=[])


def _block(stack: list[LocalParameters], layers: int) -> list[tuple[LocalParameters, float]]:
    """Return the largest kind of block of a stack: what all have, and what those of one kind have."""
    totals: dict[ParameterGroup, int] = {}
    for held in stack:
        totals[held.group] = totals.get(held.group, 0) + (0 if held.copied else held.tensors)
    attention = [totals[held.group] for held in stack if held.group.role == "attention" and held.group.linear]
    blocks = min(attention, default=layers)
    everywhere: list[tuple[LocalParameters, float]] = []
    kinds: dict[int, list[tuple[LocalParameters, float]]] = {}
    for held in stack:
        total = held.tensors if held.copied else totals[held.group]
        if total != held.tensors and not held.trainable:
            continue  # what trains of the group stands for it: the block is one in which it trains
        if total >= blocks:
            everywhere.append((held, total / blocks / held.tensors))
        else:
            kinds.setdefault(total, []).append((held, 1 / held.tensors))
    return everywhere + max(kinds.values(), key=elements_of, default=[])


def elements_of(parts: list[tuple[LocalParameters, float]]) -> float:
    """Return the elements of parameter groups, each with the share of it that counts."""
    return sum(held.elements * share for held, share in parts)


def weight_width(held: LocalParameters, widths: Widths) -> float:
    """Return the bytes per stored element of a parameter group."""
    if held.quantized and widths.quantized is not None:
        return widths.quantized
    return widths.adapter if held.adapter else widths.weight
