"""Megatron-FSDP's buckets: parameters that are communicated together, and the places that they have.

Follows ``_get_parameter_groups`` and ``build_data_parallel_buffer_index`` of megatron-fsdp 0.6.1. Parameters of one
dtype that train or do not, experts or not, are a bucket: those of each unit, and those outside of all units.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .settings import MegatronSettings


@dataclass(eq=False)
class Bucket:
    """Parameters whose weights are gathered, and whose gradients are reduced, in one tensor."""

    number: int
    """Position in the order in which buckets are gathered ahead."""
    unit: int | None
    """Number of the unit; None: outside of all units."""
    expert: bool
    trains: bool
    parameters: list[Any]
    offsets: list[int]
    """Where each parameter begins."""
    size: int
    """Elements, with gaps and padding."""
    shard: int
    """Elements that are this rank's."""
    together: list[Bucket] = field(default_factory=list)
    """Buckets that are communicated at once: those of the unit, experts apart."""

    def views(self, data: Any) -> list[Any]:
        """Return the parts of a whole bucket, one for each parameter and in its shape."""
        pairs = zip(self.parameters, self.offsets)  # noqa: B905 - not in Python 3.9
        return [data[start : start + p.numel()].view(p.shape) for p, start in pairs]

    def own_parts(self, data: Any) -> list[Any]:
        """Return this rank's parts of a bucket's shard: of rank 0, what begins before the end of the shard."""
        parts = []
        for parameter, start in zip(self.parameters, self.offsets):  # noqa: B905 - not in Python 3.9
            part = data[min(start, self.shard) : min(start + parameter.numel(), self.shard)]
            row = parameter.shape[1:].numel()
            parts.append(part.view(-1, *parameter.shape[1:]) if part.numel() % row == 0 else part)
        return parts


def make_buckets(named: Iterable[tuple[str, Any]], units: list[Any], settings: MegatronSettings) -> list[Bucket]:
    """Return the buckets of a model, in the order of their numbers.

    Args:
        named: parameters with their names, in the order of the model.
        units: modules that are units.
        settings: of the job.
    """
    unit_of = {parameter: number for number, unit in enumerate(units) for parameter in unit.parameters()}
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for name, parameter in named:
        key = (parameter.dtype, ".experts." in name, parameter.requires_grad, unit_of.get(parameter))
        groups.setdefault(key, []).append(parameter)
    buckets = []
    for number, ((_, expert, trains, unit), parameters) in enumerate(groups.items()):
        ordered = sorted(parameters, key=_row, reverse=True)
        grid = _grid(ordered)
        offsets, end = _places(ordered, grid)
        step = settings.ranks * grid if settings.stage else 1
        size = -(-end // step) * step
        shard = size // settings.ranks if settings.stage else size
        buckets.append(Bucket(number, unit, expert, trains, ordered, offsets, size, shard))
    for bucket in buckets:
        same = [each for each in buckets if (each.unit, each.expert) == (bucket.unit, bucket.expert)]
        bucket.together = [bucket] if bucket.unit is None else same
    return buckets


def _row(parameter: Any) -> int:
    """Return the elements of a parameter's row, which ranks do not share if it can be helped."""
    return int(parameter.shape[1:].numel())


def _grid(parameters: list[Any]) -> int:
    """Return the elements at whose multiples shards may end."""
    grid = _row(parameters[0])
    for parameter in parameters:
        row, size = _row(parameter), parameter.numel()
        if row != grid and size >= grid and (grid % row or size % grid):
            grid = lcm(grid, row)
    return grid


def _places(parameters: list[Any], grid: int) -> tuple[list[int], int]:
    """Return where each parameter begins, and where the last one ends: the small ones fill the gaps of the others."""
    sizes = [parameter.numel() for parameter in parameters]
    places = [0] * len(sizes)
    large = [at for at, size in enumerate(sizes) if size >= grid]
    small = [at for at, size in enumerate(sizes) if size < grid]
    end = 0
    while large:
        at = large.pop(0)
        places[at] = end
        rest = sizes[at] % grid
        if not rest:
            end += sizes[at]
            continue
        gap, end = end + sizes[at], end + (sizes[at] // grid + 1) * grid
        space = grid - rest
        other = next((each for each in large if sizes[each] % grid and rest + sizes[each] % grid <= grid), None)
        if other is not None:
            large.remove(other)
            places[other] = end - sizes[other] % grid
            space -= sizes[other] % grid
            end += sizes[other] // grid * grid
        for each in [each for each in small if sizes[each] <= space]:
            if sizes[each] <= space:
                places[each] = gap
                space, gap = space - sizes[each], gap + sizes[each]
                small.remove(each)
    for each in small:
        places[each] = end
        end += sizes[each]
    return places, end
