"""Widens a budget's range to the other sides of what its job leaves open."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class _Change:
    """How far another side lies from what is counted, in bytes."""

    side: OtherSide
    allocated: int
    reserved: int
    device: int

    @property
    def size(self) -> int:
        """The larger of the differences of what is allocated and of the device's memory."""
        return max(abs(self.allocated), abs(self.device))

    @property
    def sentence(self) -> str:
        """What is counted, and how much less or more the other side takes."""
        verb, size = ("takes", self.device) if 2 * abs(self.device) > self.size else ("allocates", self.allocated)
        change = f"{verb} {format_gib(abs(size))} GiB {'more' if size > 0 else 'less'}"
        return f"{self.side.sentence.format(change=change)}, which the range allows for."


def with_unstated(budget: Budget, arch: Architecture | CannotTellError, gpu: Gpu | None = None) -> Budget:
    """Return the budget with a range that holds the other sides, each with a sentence if it differs by more than 1 %.

    Args:
        budget: made by any method; the closed form tells how far the other sides lie from it.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
    """
    if isinstance(arch, CannotTellError) or budget.job.training.mode != "train":
        return budget
    job = resolve_job(budget.job)
    sides = [*other_versions(job, arch), *other_units(job), *unsharded_weights(job)]
    inventory = count_parameters(arch) if sides else None
    usual = _peak(budget.job, arch, inventory, gpu) if inventory is not None else None
    if usual is None or inventory is None:
        return budget
    found = ((side, _peak(side.job, arch, inventory, gpu)) for side in sides)
    changes = [_change(side, usual, peak) for side, peak in found if peak is not None]
    large = [change for change in changes if change.size > _SMALL * usual.device_bytes]
    furthest = _furthest(large)
    return replace(
        budget,
        peak=_widened(budget.peak, large),
        stages=tuple(_widened_stage(stage, large) for stage in budget.stages),
        warnings=(*budget.warnings, *(each.sentence for each in furthest if each.side.is_warning)),
        assumptions=(*budget.assumptions, *(each.sentence for each in furthest if not each.side.is_warning)),
    )


def _peak(job: Job, arch: Architecture, inventory: Inventory, gpu: Gpu | None) -> Peak | None:
    try:
        return closed_form(job, arch, inventory, gpu=gpu, words=False, doubts=False).peak
    except InputError:
        return None


def _change(side: OtherSide, usual: Peak, peak: Peak) -> _Change:
    return _Change(
        side,
        peak.allocated_bytes - usual.allocated_bytes,
        peak.reserved_bytes - usual.reserved_bytes,
        peak.device_bytes - usual.device_bytes,
    )


def _furthest(changes: Sequence[_Change]) -> list[_Change]:
    """Return the largest change of each source."""
    found: dict[str, _Change] = {}
    for change in sorted(changes, key=lambda each: (abs(each.device), each.size)):
        found[change.side.source] = change
    return list(found.values())


def _widened(peak: Peak, changes: Sequence[_Change]) -> Peak:
    device = _span(peak.device_range, changes, lambda each: each.device)
    allocated, reserved = peak.allocated_range, peak.reserved_range
    return replace(
        peak,
        low_bytes=device.low_bytes,
        high_bytes=device.high_bytes,
        allocated_range=allocated and _span(allocated, changes, lambda each: each.allocated),
        reserved_range=reserved and _span(reserved, changes, lambda each: each.reserved),
    )


def _widened_stage(stage: RankPeak, changes: Sequence[_Change]) -> RankPeak:
    device = _span(Span(stage.low_bytes, stage.high_bytes), changes, lambda each: each.device)
    return replace(stage, low_bytes=device.low_bytes, high_bytes=device.high_bytes)


def _span(span: Span, changes: Sequence[_Change], figure: Callable[[_Change], int]) -> Span:
    """Return the range with the other sides of every source, of which one at most is true."""
    by_source: dict[str, list[int]] = {}
    for change in changes:
        by_source.setdefault(change.side.source, [0]).append(figure(change))
    return span.moved(0, less=-sum(map(min, by_source.values())), more=sum(map(max, by_source.values())))
