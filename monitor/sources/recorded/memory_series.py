"""Memory over the whole time of a recording, in a bounded number of intervals; what was not read stays a gap."""

from __future__ import annotations

from array import array
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

    __slots__ = ("_begins", "_breaks", "_capacity", "_ends", "_highs", "_last_readings", "_lows", "_widest")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = max(2, capacity)
        self._begins, self._ends = array("d"), array("d")
        self._lows, self._highs = array("q"), array("q")
        self._breaks = bytearray()
        """1 where a gap precedes the interval."""
        self._last_readings = 0
        """Readings in the last interval."""
        self._widest = 1
        """Readings in an interval before the next one begins."""

    def __bool__(self) -> bool:
        """Return True if there is a reading."""
        return bool(self._begins)

    @property
    def begin(self) -> float | None:
        """Unix seconds of the first reading."""
        return self._begins[0] if self._begins else None

    @property
    def end(self) -> float | None:
        """Unix seconds of the last reading."""
        return self._ends[-1] if self._ends else None

    @property
    def high_bytes(self) -> int | None:
        """The highest reading."""
        return max(self._highs, default=None)

    def add(self, time: float, size_bytes: int, *, before: float | None) -> None:
        """Add a reading.

        Args:
            time: Unix seconds, later than the last one.
            size_bytes: memory then.
            before: Unix seconds of the recording's reading before this one; None: a gap precedes this one. If the
                series has no reading of that time, nothing is known of its memory in between either.
        """
        after_gap = before is None or self.end != before
        if self._begins and not after_gap and self._last_readings < self._widest:
            self._ends[-1] = time
            self._lows[-1] = min(self._lows[-1], size_bytes)
            self._highs[-1] = max(self._highs[-1], size_bytes)
            self._last_readings += 1
            return
        if len(self._begins) >= self._capacity:
            self._merge(over_gaps=False)
            if len(self._begins) > self._capacity * 3 // 4:  # hardly anything but gaps
                self._merge(over_gaps=True)
        for column, value in ((self._begins, time), (self._ends, time)):
            column.append(value)
        for sizes in (self._lows, self._highs):
            sizes.append(size_bytes)
        self._breaks.append(after_gap and len(self._begins) > 1)
        self._last_readings = 1

    def stretches(self) -> tuple[Stretch, ...]:
        """Return the intervals between the gaps, in order."""
        found: list[list[Interval]] = []
        columns = zip(self._begins, self._ends, self._lows, self._highs, self._breaks, strict=True)
        for begin, end, low, high, broken in columns:
            if broken or not found:
                found.append([])
            found[-1].append(Interval(begin, end, low, high))
        return tuple(tuple(stretch) for stretch in found)

    def _merge(self, *, over_gaps: bool) -> None:
        kept, at = 0, 0
        while at < len(self._begins):
            pair = at + 1 < len(self._begins) and (over_gaps or not self._breaks[at + 1])
            last = at + 1 if pair else at
            self._begins[kept], self._ends[kept] = self._begins[at], self._ends[last]
            self._lows[kept] = min(self._lows[at], self._lows[last])
            self._highs[kept] = max(self._highs[at], self._highs[last])
            self._breaks[kept] = self._breaks[at]
            kept, at = kept + 1, last + 1
        for column in (self._begins, self._ends, self._lows, self._highs, self._breaks):
            del column[kept:]
        self._widest *= 2
