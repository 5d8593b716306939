"""Widens a budget's range to the other sides of what its job leaves open."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import Struct

from ...budget import Budget, Peak, RankPeak, Span


class Change(Struct, frozen=True, kw_only=True):
    """Difference of another setting from the one that is counted, in bytes."""

    source: str
    """Setting that is left open; the alternatives of one source exclude each other."""
    allocated: int
    reserved: int
    device: int
    sentence: str
    """Sentence that says what is counted, and how much less or more the alternative takes."""
    is_warning: bool

    @property
    def size(self) -> int:
        """The larger of the differences of what is allocated and of the device's memory."""
        return max(abs(self.allocated), abs(self.device))


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
