"""Widens a budget's range to the other sides of what its job leaves open."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import Struct

from ...budget import Budget, Peak, RankPeak, Span
from ...common import CannotTellError, InputError, format_gib
from ...job import Gpu, Job, resolve_job
from ...model import Architecture, Inventory
from ...model.count_parameters import count_parameters
from ..closed_form import closed_form
from .other_side import OtherSide
from .units import other_units, unsharded_weights
from .versions import other_versions

_SMALL = 0.01
"""Share of the device's memory below which a difference is no matter."""


class Change(Struct, frozen=True, kw_only=True):
    """How far another side lies from what is counted, in bytes."""

    source: str
    """What is left open; the other sides of one source exclude each other."""
    allocated: int
    reserved: int
    device: int
    sentence: str
    """What is counted, and how much less or more the other side takes."""
    is_warning: bool

    @property
    def size(self) -> int:
        """The larger of the differences of what is allocated and of the device's memory."""
        return max(abs(self.allocated), abs(self.device))


def unstated_changes(job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None) -> tuple[Change, ...]:
    """Return how far the other sides lie from the job by the closed form: those that differ by more than 1 %.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
    """
    if isinstance(arch, CannotTellError) or job.training.mode != "train":
        return ()
    resolved = resolve_job(job)
    sides = [*other_versions(resolved, arch), *other_units(resolved), *unsharded_weights(resolved)]
    inventory = count_parameters(arch) if sides else None
    usual = _peak(job, arch, inventory, gpu) if inventory is not None else None
    if usual is None or inventory is None:
        return ()
    found = ((side, _peak(side.job, arch, inventory, gpu)) for side in sides)
    changes = [_change(side, usual, peak) for side, peak in found if peak is not None]
    return tuple(change for change in changes if change.size > _SMALL * usual.device_bytes)


def with_unstated(budget: Budget, changes: Sequence[Change]) -> Budget:
    """Return the budget with a range that holds the other sides, and a sentence about each source.

    Args:
        budget: made by any method.
        changes: of its job, by the closed form.
    """
    if not changes:
        return budget
    furthest = _furthest(changes)
    return replace(
        budget,
        peak=_widened(budget.peak, changes),
        stages=tuple(_widened_stage(stage, changes) for stage in budget.stages),
        warnings=(*budget.warnings, *(each.sentence for each in furthest if each.is_warning)),
        assumptions=(*budget.assumptions, *(each.sentence for each in furthest if not each.is_warning)),
    )


def _peak(job: Job, arch: Architecture, inventory: Inventory, gpu: Gpu | None) -> Peak | None:
    try:
        return closed_form(job, arch, inventory, gpu=gpu, words=False, doubts=False).peak
    except InputError:
        return None


def _change(side: OtherSide, usual: Peak, peak: Peak) -> Change:
    allocated = peak.allocated_bytes - usual.allocated_bytes
    device = peak.device_bytes - usual.device_bytes
    larger = max(abs(allocated), abs(device))
    verb, size = ("takes", device) if 2 * abs(device) > larger else ("allocates", allocated)
    change = f"{verb} {format_gib(abs(size))} GiB {'more' if size > 0 else 'less'}"
    return Change(
        source=side.source,
        allocated=allocated,
        reserved=peak.reserved_bytes - usual.reserved_bytes,
        device=device,
        sentence=f"{side.sentence.format(change=change)}, which the range allows for.",
        is_warning=side.is_warning,
    )


def _furthest(changes: Sequence[Change]) -> list[Change]:
    """Return the largest change of each source."""
    found: dict[str, Change] = {}
    for change in sorted(changes, key=lambda each: (abs(each.device), each.size)):
        found[change.source] = change
    return list(found.values())


def _widened(peak: Peak, changes: Sequence[Change]) -> Peak:
    device = _span(peak.device_range, changes, lambda each: each.device)
    allocated, reserved = peak.allocated_range, peak.reserved_range
    return replace(
        peak,
        low_bytes=device.low_bytes,
        high_bytes=device.high_bytes,
        allocated_range=allocated and _span(allocated, changes, lambda each: each.allocated),
        reserved_range=reserved and _span(reserved, changes, lambda each: each.reserved),
    )


def _widened_stage(stage: RankPeak, changes: Sequence[Change]) -> RankPeak:
    device = _span(Span(stage.low_bytes, stage.high_bytes), changes, lambda each: each.device)
    return replace(stage, low_bytes=device.low_bytes, high_bytes=device.high_bytes)


def _span(span: Span, changes: Sequence[Change], figure: Callable[[Change], int]) -> Span:
    """Return the range with the other sides of every source, of which one at most is true."""
    by_source: dict[str, list[int]] = {}
    for change in changes:
        by_source.setdefault(change.source, [0]).append(figure(change))
    return span.moved(0, less=-sum(map(min, by_source.values())), more=sum(map(max, by_source.values())))
