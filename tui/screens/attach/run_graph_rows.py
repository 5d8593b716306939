"""A run's memory over time in front of its budget, as plain data: components stacked from the floor, the curve, marks.

What is held already is drawn in the components' full shades, what is still to come in faint ones; the curve itself is a
thick line between them. Where there is no colour, letters take the shades' place: capital below the curve, small above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vramtop.estimator.budget.budget import Components

from ...draw.bars import Cell
from ...draw.gpu_bars import NO_JOB
from ...draw.memory_graph import EIGHTHS, Readings, column_of, column_sizes, level_of
from ...draw.palette import COMPONENTS, OTHER_MEMORY, blend
from ..step.step_graph_rows import STACK_ORDER

CARD, EXPECTED, BOUND = "═", "━", "┄"
_CARD_COLOUR = "#ef4444"
_STEPS = 8
_THICK = 4
"""Eighths of a row that the curve is thick at least."""
_DASH = 4
"""A cell of the curve cannot show a line as well: so many share one."""
_LIT, _FAINT = 0.62, 0.24
"""Shares of a component's colour, the rest is the ground's: what is held, and what is not yet."""
_CARD_IN_SIGHT = 2.0
"""A card that is larger than so many times what matters is not drawn to: nothing could be seen of the run."""


@dataclass(frozen=True, slots=True)
class LevelLine:
    """A level drawn across the graph, such as a bound of the budget."""

    size_bytes: int
    char: str
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class TimeMark:
    """A moment in the life of the run."""

    time: float
    """Unix seconds."""
    letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGraphData:
    """What is to be drawn."""

    history: Readings
    top_bytes: int
    """What the full height stands for; what is above is cut."""
    span_seconds: float
    """What the full width stands for."""
    now: float
    """Unix seconds at the right edge."""
    layers: Components | None = None
    """Stacked behind the curve; None: no budget is known."""
    slack_bytes: int = 0
    """What the allocator keeps beyond the components, on top of them."""
    lines: tuple[LevelLine, ...] = ()
    """The last one wins where two fall into one row."""
    marks: tuple[TimeMark, ...] = ()
    colour: str | None = None
    """Of the curve."""


def run_graph_rows(
    picture: RunGraphData,
    *,
    width: int,
    height: int,
    ground: str = "#000000",
    letters_only: bool = False,
    full: str = "█",
) -> list[list[Cell]]:
    """Draw the picture, the highest row first; each column shows the most that was seen in its stretch of time.

    Args:
        picture: what to draw.
        width: columns.
        height: rows.
        ground: the colour behind everything, into which the faint shades fade.
        letters_only: there is no colour to tell the components apart.
        full: the character of a full cell.
    """
    if width <= 0 or height <= 0 or picture.top_bytes <= 0:
        return []
    sizes = column_sizes(picture.history, width, picture.span_seconds, picture.now)
    levels = [level_of(size, height * _STEPS, picture.top_bytes) for size in sizes]
    bands = _bands(picture, height, ground=ground, letters_only=letters_only, full=full)
    lines = {_row_of(line.size_bytes, height, picture.top_bytes): line for line in picture.lines}
    marked = set(mark_columns(picture, width).values())
    curve = picture.colour or NO_JOB
    rows = []
    for y in range(height - 1, -1, -1):
        row = [_cell(level - y * _STEPS, bands[y], curve, full, marked=x in marked) for x, level in enumerate(levels)]
        rows.append(_with_line(row, levels, y, bands[y], lines.get(y)))
    return rows


def mark_columns(picture: RunGraphData, width: int) -> dict[str, int]:
    """The column of each mark that can be seen, by letter."""
    found: dict[str, int] = {}
    if width <= 0:
        return found
    for mark in picture.marks:
        column = column_of(mark.time, width=width, span_seconds=picture.span_seconds, now=picture.now)
        if column is not None:
            found[mark.letter] = column
    return found


def axis_rows(picture: RunGraphData, *, width: int, end: str = "now") -> tuple[str, str]:
    """Under the graph: a line with the marks' letters and a tick for each label; and the labels, ``-5 min`` to ``now``.

    Letters that would fall into one column stand beside each other, in order.

    Args:
        picture: what is drawn above.
        width: columns.
        end: what the right edge is called.
    """
    axis, names = ["─"] * width, [" "] * width
    step = _tick_seconds(picture.span_seconds, width)
    slot = picture.span_seconds / max(1, width)
    free = max(0, width - len(end))
    names[free:] = end[-width:] if width else ""
    for count in range(1, int(picture.span_seconds / step) + 1):
        column = max(0, width - 1 - round(count * step / slot))
        label = _ago(count * step)
        at = max(0, column - len(label) // 2)
        axis[column] = "┴"
        if at + len(label) < free:
            names[at : at + len(label)] = label
            free = at
    taken = -1
    for letter, column in sorted(mark_columns(picture, width).items(), key=lambda pair: pair[1]):
        taken = max(column, taken + 1)
        if taken < width:
            axis[taken] = letter
    return "".join(axis), "".join(names)


def key_cells(picture: RunGraphData, height: int) -> list[Cell]:
    """Beside the graph, from the top: the components' letters in the middle of their layers; of two, the larger's."""
    cells = [Cell(" ")] * height
    layers = _stack(picture)
    ends = list(accumulate(size for _, _, size in layers))
    for end, (letter, colour, size) in sorted(zip(ends, layers, strict=True), key=lambda pair: pair[1][2]):
        if size * height >= picture.top_bytes // 2 and letter.isalpha():
            row = height - 1 - _row_of(end - size // 2, height, picture.top_bytes)
            cells[row] = Cell(letter, "#0b1220", colour)
    return cells


def graph_top_bytes(card_bytes: int | None, *sizes: int | None) -> int:
    """What the graph's height should stand for: the card, where what is drawn fills enough of it to be seen."""
    most = max((size for size in sizes if size is not None), default=0)
    if card_bytes is not None and (not most or card_bytes <= _CARD_IN_SIGHT * most):
        return max(card_bytes, most)
    return max(1, round(most * 1.2))


@dataclass(frozen=True, slots=True)
class _Band:
    """How one row looks below the curve and above it, and the colour that is most of it above."""

    held: Cell
    coming: Cell
    ground: str | None


def _cell(reach: int, band: _Band, curve: str, full: str, *, marked: bool) -> Cell:
    """The cell of a column whose curve lies so many eighths above this row's floor."""
    if 0 < reach < _STEPS:
        return Cell(EIGHTHS[reach], curve, band.ground)
    if _STEPS <= reach < _STEPS + _THICK:
        return Cell(full, curve)
    if reach > 0:
        return band.held
    return Cell("┊", None, band.ground) if marked else band.coming


def _with_line(row: list[Cell], levels: Sequence[int], y: int, band: _Band, line: LevelLine | None) -> list[Cell]:
    if line is None:
        return row
    for x, level in enumerate(levels):
        reach = level - y * _STEPS
        crest = 0 < reach < _STEPS + _THICK
        if not crest:
            row[x] = Cell(line.char, line.colour, band.held.ground or band.held.colour if reach > 0 else band.ground)
        elif x % _DASH == 0:
            row[x] = Cell(line.char, line.colour, band.ground if reach < _STEPS // 2 else row[x].colour)
    return row


def _bands(picture: RunGraphData, height: int, *, ground: str, letters_only: bool, full: str) -> list[_Band]:
    """From the bottom to the top."""
    if picture.layers is None:
        return [_Band(Cell(full, picture.colour or NO_JOB), Cell(" "), None)] * height
    unit = picture.top_bytes / (height * _STEPS)
    layers = _stack(picture)
    ends = accumulate(size for _, _, size in layers)
    edges = [(letter, colour, round(end / unit)) for end, (letter, colour, _) in zip(ends, layers, strict=True)]
    beyond = blend(picture.colour or NO_JOB, ground, _LIT)
    return [_band(_parts(edges, y * _STEPS), beyond, ground, full, letters_only=letters_only) for y in range(height)]


def _stack(picture: RunGraphData) -> list[tuple[str, str, int]]:
    """(letter, colour, bytes) from the bottom to the top."""
    if picture.layers is None:
        return []
    stack = [(COMPONENTS[name].letter, COMPONENTS[name].colour, getattr(picture.layers, name)) for name in STACK_ORDER]
    slack = OTHER_MEMORY["slack"]
    return [*stack, (slack.letter, slack.colour, max(0, picture.slack_bytes))]


_Parts = list[tuple[str, str | None, int]]


def _parts(edges: Sequence[tuple[str, str, int]], floor: int) -> _Parts:
    """(letter, colour, eighths) of what lies in a row, from the bottom; what is left of it at the end."""
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
    for share, blank in ((_LIT, beyond), (_FAINT, None)):
        shades = [blank if colour is None else blend(colour, ground, share) for _, colour, _ in parts]
        first, size = shades[0], parts[0][2]
        if size == _STEPS:
            cells.append(Cell(" ", None, first))
        else:
            rest = max(range(1, len(parts)), key=lambda at: parts[at][2])
            cells.append(Cell(EIGHTHS[size], first, shades[rest]))
    return _Band(cells[0], cells[1], blend(most, ground, _FAINT) if most else None)


def _row_of(size_bytes: int, height: int, top_bytes: int) -> int:
    return min(height - 1, size_bytes * height // top_bytes)


def _tick_seconds(span_seconds: float, width: int) -> float:
    """The shortest round span whose labels have room beside each other."""
    room = span_seconds * 12 / max(1, width)
    steps = [1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 6, 12, 24))]
    return next((float(step) for step in steps if step >= room), 86_400.0 * max(1, -int(-room // 86_400)))


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"-{seconds / size:.0f} {unit}"
    return f"-{seconds:.0f} s" if seconds < 60 else f"-{seconds / 60:.1f} min"
