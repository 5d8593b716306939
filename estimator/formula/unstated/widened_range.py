"""Widens a budget's range to the other sides of what its job leaves open."""

from collections.abc import Sequence

from msgspec import Struct

from ...budget import Budget, Peak, RankPeak, Span
from ...common.records import replace

_UNKNOWN = 1 << 62
"""Sorts differences that are not known behind all others."""


class Change(Struct, frozen=True, kw_only=True):
    """Difference of another setting from the one that is counted, in bytes; None: not known, as much again at most."""

    source: str
    """Setting that is left open; the others of one source exclude each other."""
    allocated: int | None = None
    reserved: int | None = None
    device: int | None = None
    sentence: str
    """Sentence that says what is counted, and how much less or more the alternative takes."""
    is_warning: bool

    @property
    def size(self) -> int:
        """The larger of the differences of what is allocated and of the device's memory."""
        return max(abs(_UNKNOWN if each is None else each) for each in (self.allocated, self.device))


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
        doubt=furthest[-1].sentence,
        doubt_bytes=min(furthest[-1].size, budget.peak.device_bytes),
    )


def _furthest(changes: Sequence[Change]) -> list[Change]:
    """Return the largest change of each source, the largest of all last."""
    found: dict[str, Change] = {}
    for change in sorted(changes, key=lambda each: (each.device is None, abs(each.device or 0), each.size)):
        found.pop(change.source, None)
        found[change.source] = change
    return list(found.values())


def _widened(peak: Peak, changes: Sequence[Change]) -> Peak:
    device = _span(peak.device_range, peak.device_bytes, changes, "device")
    allocated, reserved = peak.allocated_range, peak.reserved_range
    return replace(
        peak,
        low_bytes=device.low_bytes,
        high_bytes=device.high_bytes,
        allocated_range=allocated and _span(allocated, peak.allocated_bytes, changes, "allocated"),
        reserved_range=reserved and _span(reserved, peak.reserved_bytes, changes, "reserved"),
    )


def _widened_stage(stage: RankPeak, changes: Sequence[Change]) -> RankPeak:
    device = _span(Span(stage.low_bytes, stage.high_bytes), stage.device_bytes, changes, "device")
    return replace(stage, low_bytes=device.low_bytes, high_bytes=device.high_bytes)


def _span(span: Span, counted: int, changes: Sequence[Change], name: str) -> Span:
    """Return the range with the other sides of every source, of which one at most is true.

    Another side is as uncertain, for its size, as what is counted.
    """
    by_source: dict[str, list[int]] = {}
    for change in changes:
        difference = getattr(change, name)
        by_source.setdefault(change.source, [0]).append(counted if difference is None else difference)
    less, more = -sum(map(min, by_source.values())), sum(map(max, by_source.values()))
    low, high = span.low_bytes / max(1, counted), span.high_bytes / max(1, counted)
    return span.moved(0, less=round(less * min(1.0, low)), more=round(more * max(1.0, high)))
