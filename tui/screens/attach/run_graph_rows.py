"""Rows of the run graph as plain data: a curve of memory over time in front of the stacked components of the budget.

Components are drawn in full colours below the curve and in faint ones above it; the curve is a thick line between them.
Without colour they are drawn as letters: capital below the curve, small above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vramtop.estimator.budget import Components

from ...draw import (
    COMPONENTS,
    EIGHTHS,
    NO_JOB,
    OTHER_MEMORY,
    Cell,
    Readings,
    blend,
    column_of,
    column_sizes,
    ink_on,
    level_of,
)
from ..step import MAX_GPU_TO_PEAK, STACK_ORDER

EXPECTED, BOUND = "━", "┄"
_STEPS = 8
_CURVE_EIGHTHS = 4
"""Minimum thickness of the curve, in eighths of a row."""
_DASH_CELLS = 4
"""A line across the curve replaces every fourth of its cells."""
_HELD_SHARE, _COMING_SHARE = 0.62, 0.24
"""Share of a component's colour in held memory and in memory still to come; the rest is background."""


@dataclass(frozen=True, slots=True)
class LevelLine:
    """A horizontal line, such as a bound of the budget."""

    size_bytes: int
    char: str
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class TimeMark:
    """A moment of the run, such as the start of a phase."""

    time: float
    """Unix seconds."""
    letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGraphData:
    """The run and its budget."""

    history: Readings
    top_bytes: int
    """Bytes at the top of the graph; anything above is cut off."""
    span_seconds: float
    """Seconds across the full width."""
    now: float
    """Unix seconds at the right edge."""
    layers: Components | None = None
    """Components of the budget, behind the curve; None: no budget is known."""
    slack_bytes: int = 0
    """Bytes that the allocator keeps beyond the components, on top of them."""
    lines: tuple[LevelLine, ...] = ()
    """The last of two lines in the same row is drawn."""
    marks: tuple[TimeMark, ...] = ()
    colour: str | None = None
    """Colour of the curve."""


def run_graph_rows(
    data: RunGraphData,
    *,
    width: int,
    height: int,
    ground: str = "#000000",
    letters_only: bool = False,
    full: str = "█",
) -> list[list[Cell]]:
    """Draw the run, top row first; each column shows the maximum over its time.

    Args:
        data: the run and its budget.
        width: columns.
        height: rows.
        ground: the background colour, with which components are blended.
        letters_only: draw letters: there is no colour.
        full: character of a full cell.
    """
    if width <= 0 or height <= 0 or data.top_bytes <= 0:
        return []
    sizes = column_sizes(data.history, width, data.span_seconds, data.now)
    levels = [level_of(size, height * _STEPS, data.top_bytes) for size in sizes]
    bands = _bands(data, height, ground=ground, letters_only=letters_only, full=full)
    lines = {_row_of(line.size_bytes, height, data.top_bytes): line for line in data.lines}
    marked = set(mark_columns(data, width).values())
    curve = data.colour or NO_JOB
    rows = []
    for y in range(height - 1, -1, -1):
        row = [_cell(level - y * _STEPS, bands[y], curve, full, marked=x in marked) for x, level in enumerate(levels)]
        rows.append(_with_line(row, levels, y, bands[y], lines.get(y)))
    return rows


def mark_columns(data: RunGraphData, width: int) -> dict[str, int]:
    """Return the column of each visible mark, by letter."""
    found: dict[str, int] = {}
    if width <= 0:
        return found
    for mark in data.marks:
        column = column_of(mark.time, width=width, span_seconds=data.span_seconds, now=data.now)
        if column is not None:
            found[mark.letter] = column
    return found


def axis_rows(data: RunGraphData, *, width: int, end: str = "now") -> tuple[str, str]:
    """Return the two rows below the graph: letters of the marks with ticks, and time labels such as ``-5 min``.

    Letters that belong in the same column are put side by side, in order.

    Args:
        data: the run that is drawn above.
        width: columns.
        end: label of the right edge.
    """
    axis, names = ["─"] * width, [" "] * width
    step = _tick_seconds(data.span_seconds, width)
    slot = data.span_seconds / max(1, width)
    free = max(0, width - len(end))
    names[free:] = end[-width:] if width else ""
    for count in range(1, int(data.span_seconds / step) + 1):
        column = max(0, width - 1 - round(count * step / slot))
        label = _ago(count * step)
        at = max(0, column - len(label) // 2)
        axis[column] = "┴"
        if at + len(label) < free:
            names[at : at + len(label)] = label
            free = at
    taken = -1
    for letter, column in sorted(mark_columns(data, width).items(), key=lambda pair: pair[1]):
        taken = max(column, taken + 1)
        if taken < width:
            axis[taken] = letter
    return "".join(axis), "".join(names)


def key_cells(data: RunGraphData, height: int) -> list[Cell]:
    """Return the column right of the graph: the letter of each component at the middle of its layer."""
    cells = [Cell(" ")] * height
    layers = _stack(data)
    ends = list(accumulate(size for _, _, size in layers))
    for end, (letter, colour, size) in sorted(zip(ends, layers, strict=True), key=lambda pair: pair[1][2]):
        if size * height >= data.top_bytes // 2 and letter.isalpha():
            row = height - 1 - _row_of(end - size // 2, height, data.top_bytes)
            cells[row] = Cell(letter, ink_on(colour), colour)
    return cells


def graph_top_bytes(gpu_bytes: int | None, *sizes: int | None) -> int:
    """Return the bytes at the top of the graph: those of the GPU, if the run or its budget fills enough of it."""
    most = max((size for size in sizes if size is not None), default=0)
    if gpu_bytes is not None and (not most or gpu_bytes <= MAX_GPU_TO_PEAK * most):
        return max(gpu_bytes, most)
    return max(1, round(most * 1.2))


@dataclass(frozen=True, slots=True)
class _Band:
    """Cells of one row below and above the curve, and the main colour above it."""

    held: Cell
    coming: Cell
    ground: str | None


def _cell(reach: int, band: _Band, curve: str, full: str, *, marked: bool) -> Cell:
    """Return the cell of a column whose curve is ``reach`` eighths above the bottom of this row."""
    if 0 < reach < _STEPS:
        return Cell(EIGHTHS[reach], curve, band.ground)
    if _STEPS <= reach < _STEPS + _CURVE_EIGHTHS:
        return Cell(full, curve)
    if reach > 0:
        return band.held
    return Cell("┊", None, band.ground) if marked else band.coming


def _with_line(row: list[Cell], levels: Sequence[int], y: int, band: _Band, line: LevelLine | None) -> list[Cell]:
    if line is None:
        return row
    for x, level in enumerate(levels):
        reach = level - y * _STEPS
        crest = 0 < reach < _STEPS + _CURVE_EIGHTHS
        if not crest:
            row[x] = Cell(line.char, line.colour, band.held.ground or band.held.colour if reach > 0 else band.ground)
        elif x % _DASH_CELLS == 0:
            row[x] = Cell(line.char, line.colour, band.ground if reach < _STEPS // 2 else row[x].colour)
    return row


def _bands(data: RunGraphData, height: int, *, ground: str, letters_only: bool, full: str) -> list[_Band]:
    """Return the look of each row, from the bottom."""
    if data.layers is None:
        return [_Band(Cell(full, data.colour or NO_JOB), Cell(" "), None)] * height
    unit = data.top_bytes / (height * _STEPS)
    layers = _stack(data)
    ends = accumulate(size for _, _, size in layers)
    edges = [(letter, colour, round(end / unit)) for end, (letter, colour, _) in zip(ends, layers, strict=True)]
    beyond = blend(data.colour or NO_JOB, ground, _HELD_SHARE)
    return [_band(_parts(edges, y * _STEPS), beyond, ground, full, letters_only=letters_only) for y in range(height)]


def _stack(data: RunGraphData) -> list[tuple[str, str, int]]:
    """Return (letter, colour, bytes) of each layer, from the bottom."""
    if data.layers is None:
        return []
    stack = [(COMPONENTS[name].letter, COMPONENTS[name].colour, getattr(data.layers, name)) for name in STACK_ORDER]
    slack = OTHER_MEMORY["slack"]
    return [*stack, (slack.letter, slack.colour, max(0, data.slack_bytes))]


_Parts = list[tuple[str, str | None, int]]


def _parts(edges: Sequence[tuple[str, str, int]], floor: int) -> _Parts:
    """Return (letter, colour, eighths) of the layers in a row, from the bottom, with the empty rest at the end."""
    parts: _Parts = []
    below = 0
    for letter, colour, edge in edges:
        size = min(edge, floor + _STEPS) - max(below, floor)
        if size > 0:
            parts.append((letter, colour, size))
        below = edge
    rest = _STEPS - sum(size for _, _, size in parts)
    return [*parts, (" ", None, rest)] if rest else parts


def _band(parts: _Parts, beyond: str, ground: str, full: str, *, letters_only: bool) -> _Band:
    letter, most, _ = max(parts, key=lambda part: part[2])
    if letters_only:
        held, coming = (None, None) if most is None else (most, blend(most, ground, 0.5))
        return _Band(Cell(letter if most else full, held), Cell(letter.lower() if most else " ", coming), None)
    cells = []
    for share, blank in ((_HELD_SHARE, beyond), (_COMING_SHARE, None)):
        shades = [blank if colour is None else blend(colour, ground, share) for _, colour, _ in parts]
        first, size = shades[0], parts[0][2]
        if size == _STEPS:
            cells.append(Cell(" ", None, first))
        else:
            rest = max(range(1, len(parts)), key=lambda at: parts[at][2])
            cells.append(Cell(EIGHTHS[size], first, shades[rest]))
    return _Band(cells[0], cells[1], blend(most, ground, _COMING_SHARE) if most else None)


def _row_of(size_bytes: int, height: int, top_bytes: int) -> int:
    return min(height - 1, size_bytes * height // top_bytes)


def _tick_seconds(span_seconds: float, width: int) -> float:
    """Return the shortest round interval at which labels do not overlap."""
    room = span_seconds * 12 / max(1, width)
    steps = [1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 6, 12, 24))]
    return next((float(step) for step in steps if step >= room), 86_400.0 * max(1, -int(-room // 86_400)))


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"-{seconds / size:.0f} {unit}"
    return f"-{seconds:.0f} s" if seconds < 60 else f"-{seconds / 60:.1f} min"
