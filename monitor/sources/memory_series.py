"""Memory over the whole time of a recording, in a bounded number of intervals; what was not read stays a gap."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

CAPACITY = 800
"""Intervals kept of each series; a plot has fewer pixels than twice that."""


class Interval(NamedTuple):
    """Consecutive readings; of one reading both times and both sizes are the same."""

    begin: float
    """Unix seconds of the first reading."""
    end: float
    low_bytes: int
    high_bytes: int


Stretch = tuple[Interval, ...]
"""Intervals without a gap between them."""


class MemorySeries:
    """Highest and lowest memory of consecutive intervals; when there is no room for more, neighbours are merged.

    Two intervals with a gap between them are merged only if nothing else is left to be merged.

    Args:
        capacity: maximum number of intervals.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = max(2, capacity)
        self._stretches: list[list[Interval]] = []
        self._last_readings = 0
        """Readings in the last interval."""
        self._widest = 1
        """Readings in an interval before the next one begins."""

    def __bool__(self) -> bool:
        """Return True if there is a reading."""
        return bool(self._stretches)

    @property
    def begin(self) -> float | None:
        """Unix seconds of the first reading."""
        return self._stretches[0][0].begin if self._stretches else None

    @property
    def end(self) -> float | None:
        """Unix seconds of the last reading."""
        return self._stretches[-1][-1].end if self._stretches else None

    @property
    def high_bytes(self) -> int | None:
        """The highest reading."""
        return max((each.high_bytes for stretch in self._stretches for each in stretch), default=None)

    def add(self, time: float, size_bytes: int, *, before: float | None) -> None:
        """Add a reading.

        Args:
            time: Unix seconds, later than the last one.
            size_bytes: memory then.
            before: Unix seconds of the recording's reading before this one; None: a gap precedes this one. If the
                series has no reading of that time, nothing is known of its memory in between either.
        """
        new, after_gap = Interval(time, time, size_bytes, size_bytes), before is None or self.end != before
        if not after_gap and self._last_readings < self._widest:
            self._stretches[-1][-1] = _merged(self._stretches[-1][-1], new)
            self._last_readings += 1
            return
        if self._count >= self._capacity:
            self._stretches = [
                [_merged(one, other) if other else one for one, other in zip_longest(stretch[::2], stretch[1::2])]
                for stretch in self._stretches
            ]
            self._widest *= 2
            if self._count > self._capacity * 3 // 4:  # hardly anything but gaps
                self._stretches = [
                    [*one[:-1], _merged(one[-1], other[0]), *other[1:]] if other else one
                    for one, other in zip_longest(self._stretches[::2], self._stretches[1::2])
                ]
        if after_gap:
            self._stretches.append([])
        self._stretches[-1].append(new)
        self._last_readings = 1

    def stretches(self) -> tuple[Stretch, ...]:
        """Return the intervals between the gaps, in order."""
        return tuple(map(tuple, self._stretches))

    @property
    def _count(self) -> int:
        return sum(map(len, self._stretches))


def _merged(one: Interval, other: Interval) -> Interval:
    low, high = min(one.low_bytes, other.low_bytes), max(one.high_bytes, other.high_bytes)
    return Interval(one.begin, other.end, low, high)
