"""Memory over time on a fixed axis, as plain data: the floor is zero, so 90 % of the ceiling looks 90 % full."""

from collections.abc import Sequence
from itertools import pairwise

from vramtop.estimator.common.sizes import GIB

from .bars import Cell

Readings = Sequence[tuple[float, int | None]]
"""(Unix seconds, bytes or None), oldest first."""

EIGHTHS = " ▁▂▃▄▅▆▇█"
_HELD_INTERVALS = 3
"""A reading stands for so many usual intervals when none follows; after that nobody knows."""


def graph_levels(
    history: Readings, *, width: int, height: int, top_bytes: int, span_seconds: float, now: float
) -> tuple[int, ...]:
    """How high each column of the graph reaches, in eighths of a row; the newest is at the right.

    Each column shows the most that was seen in its stretch of time. A stretch that only holds readings of None, or
    none at all, stays empty.

    Args:
        history: what to draw.
        width: columns.
        height: rows.
        top_bytes: what the full height stands for; what is above is cut.
        span_seconds: what the full width stands for.
        now: Unix seconds at the right edge.
    """
    if width <= 0 or height <= 0 or top_bytes <= 0:
        return ()
    full = height * (len(EIGHTHS) - 1)
    return tuple(level_of(size, full, top_bytes) for size in column_sizes(history, width, span_seconds, now))


def level_rows(levels: Sequence[int], height: int, colour: str | None) -> list[list[Cell]]:
    """The graph as cells in a colour, from the top row down."""
    steps = len(EIGHTHS) - 1
    rows = []
    for floor in range((height - 1) * steps, -1, -steps):
        filled = (min(steps, max(0, level - floor)) for level in levels)
        rows.append([Cell(EIGHTHS[fill], colour if fill else None) for fill in filled])
    return rows


def column_sizes(history: Readings, width: int, span_seconds: float, now: float) -> list[int | None]:
    """The most seen in each column's stretch; stretches start at multiples of their length: columns never shimmer."""
    slot_seconds = span_seconds / width
    columns: list[int | None] = [None] * width
    first = _first_slot(width, slot_seconds, now)
    holds = _holds(history)
    for at, (time, size) in enumerate(history):
        until = history[at + 1][0] if at + 1 < len(history) else now
        if size is None or until < now - span_seconds - slot_seconds:
            continue
        start = int(time // slot_seconds)
        end = max(start, -int(-min(until, time + holds[at]) // slot_seconds) - 1)
        for slot in range(max(0, start - first), min(width - 1, end - first) + 1):
            columns[slot] = max(size, columns[slot] or 0)
    return columns


def column_of(time: float, *, width: int, span_seconds: float, now: float) -> int | None:
    """The column in whose stretch a moment lies; None where it is older than the graph."""
    slot_seconds = span_seconds / width
    column = int(time // slot_seconds) - _first_slot(width, slot_seconds, now)
    return min(width - 1, column) if column >= 0 else None


def level_of(size: int | None, full: int, top_bytes: int) -> int:
    """How high a size reaches on a scale of ``full`` steps; what is there at all is seen."""
    return 0 if not size else min(full, max(1, round(size * full / top_bytes)))


def axis_labels(top_bytes: int, height: int, *, ascii_only: bool) -> list[str]:
    """The scale at the left: each label says what the top edge of its row stands for, but the last one says 0."""
    tick, edge = "|" if ascii_only else "┤", "|" if ascii_only else "│"
    named = {0: top_bytes / GIB, height - 1: 0.0}
    if height >= 5:
        middle = height // 2
        named[middle] = top_bytes * (height - middle) / height / GIB
    digits = 0 if top_bytes >= 10 * GIB else 1
    width = len(f"{top_bytes / GIB:.{digits}f}")
    return [f"{named[y]:{width}.{digits}f} {tick}" if y in named else f"{'':{width}} {edge}" for y in range(height)]


def _first_slot(width: int, slot_seconds: float, now: float) -> int:
    return int(now // slot_seconds) - width + 1


def _holds(history: Readings) -> list[float]:
    """For how many seconds each reading stands at most: older ones may have been kept at a coarser grain."""
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(history)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    near = [min(gaps[max(0, at - 2) : max(2, at)], default=usual) for at in range(len(history))]
    return [_HELD_INTERVALS * max(usual, gap) for gap in near]
