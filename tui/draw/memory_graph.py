"""Memory over time as plain data, on an axis that begins at zero: 90 % of the top looks 90 % full."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vramtop.estimator.common.sizes import GIB

from .bars import PAINTED, Cell
from .palette import colour_of

if TYPE_CHECKING:
    from vramtop.estimator.budget import ComponentName

Readings = Sequence[tuple[float, int | None]]
"""(Unix seconds, bytes or None), oldest first."""

EIGHTHS = " ▁▂▃▄▅▆▇█"
STEPS = len(EIGHTHS) - 1
"""Heights that a cell can show above none."""
GPU_TOTAL = "═"
MAX_GPU_TO_PEAK = 2.0
"""A GPU larger than this multiple of the job's peak is not drawn: the job would be a thin line at the bottom."""
STACK_ORDER: tuple[ComponentName, ...] = (
    "context",
    "other_models",
    "weights",
    "optimizer",
    "gradients",
    "inputs",
    "activations",
    "logits",
    "communication",
    "temporary",
)
"""Components from bottom to top: permanent memory lies below memory that comes and goes."""
Layer = TypeVar("Layer")


def column_sizes(history: Readings, width: int, span_seconds: float, now: float) -> list[int | None]:
    """Return the maximum of each column's slot; they start at multiples of their length to avoid flicker."""
    slot_seconds = span_seconds / width
    columns: list[int | None] = [None] * width
    first = _first_slot(width, slot_seconds, now)
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(history)]  # older readings may be kept less densely
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    near = [min(gaps[max(0, at - 2) : max(2, at)], default=usual) for at in range(len(history))]
    max_seconds = [_MAX_HELD_INTERVALS * max(usual, gap) for gap in near]
    for at, (moment, size) in enumerate(history):
        until = history[at + 1][0] if at + 1 < len(history) else now
        if size is None or until < now - span_seconds - slot_seconds:
            continue
        start = int(moment // slot_seconds)
        end = max(start, -int(-min(until, moment + max_seconds[at]) // slot_seconds) - 1)
        for slot in range(max(0, start - first), min(width - 1, end - first) + 1):
            columns[slot] = max(size, columns[slot] or 0)
    return columns


def axis_labels(top_bytes: int, height: int, *, lines: Sequence[int] = ()) -> list[str]:
    """Return the scale at the left: the value of the top edge of a row, or of the line in it; the last one is 0.

    Args:
        top_bytes: at the top edge.
        height: in rows.
        lines: sizes of horizontal lines; a label of another value beside one would look like the line's.
    """
    drawn = {
        height - 1 - min(height - 1, size * height // top_bytes): size / GIB for size in lines if size <= top_bytes
    }
    named = {0: top_bytes / GIB}
    middle = height // 2
    if height >= 5 and not any(abs(y - middle) <= 1 for y in drawn):
        named[middle] = top_bytes * (height - middle) / height / GIB
    named |= {**drawn, height - 1: 0.0}
    digits = 0 if top_bytes >= 10 * GIB else 1
    width = len(f"{top_bytes / GIB:.{digits}f}")
    return [f"{named[y]:{width}.{digits}f} ┤" if y in named else f"{'':{width}} │" for y in range(height)]


class TimeMark(msgspec.Struct, frozen=True):
    """A moment of a run, such as the start of a phase."""

    time: float
    """Unix seconds."""
    labels: tuple[str, ...]
    """Its name, the longest variant first."""
    colour: str | None = None
    """The colour of a moment that needs attention; None: of another one."""


TimelineMark = tuple[int, TimeMark]
"""A column of the horizontal axis, and its moment; one with a colour is named before all others."""


def timeline_marks(
    marks: Sequence[TimeMark], *, width: int, span_seconds: float, now: float
) -> tuple[TimelineMark, ...]:
    """Return the moments that a graph shows with their columns; the phase that lasts into it stands at its left.

    Args:
        marks: the moments, oldest first.
        width: in columns.
        span_seconds: seconds of the full width.
        now: Unix seconds at the right edge.
    """
    if width <= 0:
        return ()
    slot_seconds = span_seconds / width
    first = _first_slot(width, slot_seconds, now)
    slots = (int(mark.time // slot_seconds) - first for mark in marks)
    columns = [min(width - 1, slot) if slot >= 0 else None for slot in slots]  # None: older than the graph
    placed = list(zip(columns, marks, strict=True))
    older = [mark for column, mark in placed if column is None and not mark.colour]
    return (*((0, mark) for mark in older[-1:]), *((at, mark) for at, mark in placed if at is not None))


def timeline_cells(marks: Sequence[TimelineMark], width: int, *, empty: str = " ") -> list[Cell]:
    """Return the row below a graph: each moment as a line, with its name right of it where there is room.

    Args:
        marks: the moments; those in the same column in order.
        width: in columns.
        empty: the character between them.
    """
    cells: list[Cell] = [Cell(empty)] * width
    taken: list[bool] = [False] * width
    for column, mark in marks:
        if mark.colour and column < width:
            start, label = _alarm_place(column, mark, width)
            for at, char in enumerate(label, start=start):
                cells[at], taken[at] = Cell(char, mark.colour), True
    others = sorted((each for each in marks if not each[1].colour and each[0] < width), key=lambda each: each[0])
    for (column, mark), after in zip(others, [*(at for at, _ in others[1:]), width], strict=False):
        end = max(after, column + 1)
        end = next((at - 1 for at in range(column, end) if taken[at]), end)
        line = "▏" if end - column > 1 else ""
        label = next((label for label in mark.labels if len(label) <= end - column - len(line)), "")
        for at, char in enumerate(f"{line}{label}", start=column):
            cells[at], taken[at] = Cell(char, colour_of("neutral")), True
    return cells


def _alarm_place(column: int, mark: TimeMark, width: int) -> tuple[int, str]:
    """Return where a label begins whose first character is a sign: right of its moment, otherwise left of it."""
    *named, sign = mark.labels
    for label in named:
        if len(label) <= width - column:
            return column, label
    for label in named:
        words = f"{label.partition(' ')[2]} {label[0]}"
        if len(words) <= column + 1:
            return column + 1 - len(words), words
    return column, sign


def _first_slot(width: int, slot_seconds: float, now: float) -> int:
    return int(now // slot_seconds) - width + 1


_MAX_HELD_INTERVALS = 3
"""Number of usual intervals for which a reading counts if none follows; after that the memory is unknown."""


def cell_parts(edges: Sequence[tuple[Layer, int]], y: int) -> list[tuple[Layer | None, int]]:
    """Return the layers in the cells of a row, from the bottom, in eighths; None: empty.

    Args:
        edges: the layers from the bottom, each with its upper edge in eighths of a row.
        y: the row, counted from the bottom.
    """
    floor, below = y * STEPS, 0
    parts: list[tuple[Layer | None, int]] = []
    for layer, edge in edges:
        low, high = max(below, floor), min(edge, floor + STEPS)
        if high > low:
            parts.append((layer, high - low))
        below = edge
    empty = STEPS - sum(size for _, size in parts)
    return [*parts, (None, empty)] if empty else parts


def split_cell(parts: Sequence[tuple[str | None, int]]) -> Cell:
    """Return a cell of (colour, eighths): the lowest at the bottom, and the largest of the others above it."""
    (first, size), rest = parts[0], parts[1:]
    if not rest:
        return Cell(PAINTED, None, first)
    return Cell(EIGHTHS[size], first, max(rest, key=lambda part: part[1])[0])
