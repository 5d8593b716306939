"""Memory over time on a fixed axis: the floor is zero and the ceiling is the card, so 90 % looks 90 % full."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vramtop.estimator.sizes import GIB

from ..bars import Cell
from .drawn_rows import DrawnRows

Readings = Sequence[tuple[float, int | None]]
"""(Unix seconds, bytes or None), oldest first."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_THIRDS = " .:#"
_FULL = "█#"
_DASH = 4
"""A cell that is partly full cannot show a line as well: so many cells share one."""
_HELD_INTERVALS = 3
"""A reading stands for so many usual intervals when none follows; after that nobody knows."""


@dataclass(frozen=True, slots=True)
class Line:
    """A level drawn across the graph, such as a budget."""

    size_bytes: int
    char: str
    colour: str | None = None


def graph_rows(
    history: Readings,
    *,
    width: int,
    height: int,
    top_bytes: int,
    lines: Sequence[Line] = (),
    span_seconds: float,
    now: float,
    colour: str | None = None,
    ascii_only: bool = False,
) -> list[list[Cell]]:
    """Draw the graph; the newest column is at the right.

    Each column shows the most that was seen in its stretch of time. A stretch that only holds readings of None, or
    none at all, stays empty. Lines are drawn over empty and full cells, and over a few of those that are partly full,
    so that both can be seen.

    Args:
        history: what to draw.
        width: columns.
        height: rows.
        top_bytes: what the full height stands for; what is above is cut.
        lines: levels to draw; the last one wins where two fall into one row.
        span_seconds: what the full width stands for.
        now: Unix seconds at the right edge.
        colour: of the graph itself.
        ascii_only: draw with ``.:#`` in place of block characters.
    """
    if width <= 0 or height <= 0 or top_bytes <= 0:
        return []
    ramp = _THIRDS if ascii_only else _EIGHTHS
    steps = len(ramp) - 1
    levels = [_level(size, height * steps, top_bytes) for size in _columns(history, width, span_seconds, now)]
    rows = []
    for floor in range((height - 1) * steps, -1, -steps):
        filled = (min(steps, max(0, level - floor)) for level in levels)
        rows.append([Cell(ramp[fill], colour if fill else None) for fill in filled])
    drawn = [list(row) for row in rows]
    for line in lines:
        at = height - 1 - min(height - 1, line.size_bytes * height // top_bytes)
        drawn[at] = _with_line(rows[at], line)
    return drawn


def _columns(history: Readings, width: int, span_seconds: float, now: float) -> list[int | None]:
    """The most seen in each column's stretch; stretches start at multiples of their length: columns never shimmer."""
    slot_seconds = span_seconds / width
    first = int(now // slot_seconds) - width + 1
    columns: list[int | None] = [None] * width
    hold = _usual_interval(history) * _HELD_INTERVALS
    for at, (time, size) in enumerate(history):
        until = history[at + 1][0] if at + 1 < len(history) else now
        if size is None or until < now - span_seconds - slot_seconds:
            continue
        start = int(time // slot_seconds)
        end = max(start, -int(-min(until, time + hold) // slot_seconds) - 1)
        for slot in range(max(0, start - first), min(width - 1, end - first) + 1):
            columns[slot] = max(size, columns[slot] or 0)
    return columns


def _usual_interval(history: Readings) -> float:
    gaps = sorted(later[0] - earlier[0] for earlier, later in pairwise(history))
    return gaps[len(gaps) // 2] if gaps else 0.0


def _level(size: int | None, full: int, top_bytes: int) -> int:
    return 0 if not size else min(full, max(1, round(size * full / top_bytes)))


def _with_line(row: Sequence[Cell], line: Line) -> list[Cell]:
    drawn = list(row)
    for column, cell in enumerate(row):
        if cell.char in _FULL:
            drawn[column] = Cell(line.char, line.colour, cell.colour)
        elif cell.char == " " or column % _DASH == 0:
            drawn[column] = Cell(line.char, line.colour)
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    history: Readings
    top_bytes: int
    lines: tuple[Line, ...]
    span_seconds: float
    now: float
    colour: str | None


class MemoryGraph(DrawnRows):
    """A graph of memory over time that repaints only when what it draws has changed.

    Args:
        axis: write the scale's figures (GiB) at the left.
        ascii_only: draw without block characters.
        id: the widget's id in the DOM.
        classes: its CSS classes.
    """

    DEFAULT_CSS = "MemoryGraph { height: 1fr; min-height: 1; }"

    def __init__(
        self,
        *,
        axis: bool = False,
        ascii_only: bool = False,
        id: str | None = None,  # noqa: A002 - Textual's own name for it
        classes: str | None = None,
    ) -> None:
        super().__init__(ascii_only=ascii_only, id=id, classes=classes)
        self._axis = axis
        self._shown: _Shown | None = None

    def show(
        self,
        history: Readings,
        *,
        top_bytes: int,
        lines: Sequence[Line] = (),
        span_seconds: float,
        now: float,
        colour: str | None = None,
    ) -> None:
        """Draw this from now on; the arguments are those of ``graph_rows``."""
        self._shown = _Shown(
            history=history,
            top_bytes=top_bytes,
            lines=tuple(lines),
            span_seconds=span_seconds,
            now=now,
            colour=colour,
        )
        self._draw()

    def _draw(self) -> None:
        shown, (width, height) = self._shown, self.size
        if shown is None:
            return
        labels = axis_labels(shown.top_bytes, height, ascii_only=self._ascii_only) if self._axis else [""] * height
        rows = graph_rows(
            shown.history,
            width=width - len(labels[0]) if labels else width,
            height=height,
            top_bytes=shown.top_bytes,
            lines=shown.lines,
            span_seconds=shown.span_seconds,
            now=shown.now,
            colour=shown.colour,
            ascii_only=self._ascii_only,
        )
        self._keep([[*(Cell(char) for char in label), *row] for label, row in zip(labels, rows, strict=False)])


def axis_labels(top_bytes: int, height: int, *, ascii_only: bool) -> list[str]:
    """The scale at the left: each label says what the top edge of its row stands for, but the last one says 0."""
    tick, edge = "|" if ascii_only else "┤", "|" if ascii_only else "│"
    named = {0: top_bytes / GIB, height - 1: 0.0}
    if height >= 5:
        middle = height // 2
        named[middle] = top_bytes * (height - middle) / height / GIB
    width = len(f"{top_bytes / GIB:.0f}")
    return [f"{named[y]:{width}.0f} {tick}" if y in named else f"{'':{width}} {edge}" for y in range(height)]
