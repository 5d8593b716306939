"""The run graph: a curve of memory over time in front of the stacked components of the budget.

Components are drawn in full colours below the curve and in faint ones above it; the curve is a thick line between
them. Each is named once. What is held beyond the budget is red. Without colour, layers are told apart by patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from .bars import BarSegment, Cell, component_segments, inked, memory_segment
from .memory_graph import (
    EIGHTHS,
    MAX_GPU_TO_PEAK,
    STACK_ORDER,
    STEPS,
    Readings,
    TimelineMark,
    TimeMark,
    cell_parts,
    column_sizes,
    split_cell,
    timeline_cells,
    timeline_marks,
)
from .palette import blend, colour_of

if TYPE_CHECKING:
    from vramtop.estimator.budget import Components

EXPECTED, BOUND = "━", "┄"


class LevelLine(msgspec.Struct, frozen=True):
    """A horizontal line, such as a bound of the budget."""

    size_bytes: int
    char: str
    colour: str | None = None


class RunGraphData(msgspec.Struct, frozen=True, kw_only=True):
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
    high_bytes: int | None = None
    """The upper bound of the budget, beyond which the run is red; None: not known, or a guess."""
    colour: str | None = None
    """Colour of the curve."""


def run_graph_rows(
    data: RunGraphData, *, width: int, height: int, ground: str = "#000000", patterns: bool = False
) -> list[list[Cell]]:
    """Draw the run, top row first; each column shows the maximum over its time.

    Args:
        data: the run and its budget.
        width: columns.
        height: rows.
        ground: the background colour, with which components are blended.
        patterns: draw patterns: there is no colour.
    """
    if width <= 0 or height <= 0 or data.top_bytes <= 0:
        return []
    sizes = column_sizes(data.history, width, data.span_seconds, data.now)
    full = height * STEPS  # what is not 0 has a step at least
    levels = [min(full, max(1, round(size * full / data.top_bytes))) if size else 0 for size in sizes]
    bands = _bands(data, height, ground=ground, patterns=patterns)
    lines = {row_of(line.size_bytes, height, data.top_bytes): line for line in data.lines}
    marks = {at: mark.colour or colour_of("neutral") for at, mark in _marks(data, width) if at}
    rows = []
    for y in range(height - 1, -1, -1):
        band, line = bands[y], lines.get(y)
        row = [_cell(level - y * STEPS, band, marks.get(x)) for x, level in enumerate(levels)]
        for x, reach in enumerate(level - y * STEPS for level in levels):
            if line and not 0 < reach < STEPS + _CURVE_EIGHTHS:  # the curve hides it
                behind = band.held.ground or band.held.colour if reach > 0 else band.ground
                row[x] = Cell(line.char, line.colour, behind) if line.colour else inked(line.char, behind)
        rows.append(row)
    _write_labels(rows, levels, data)
    return rows


def _write_labels(rows: list[list[Cell]], levels: Sequence[int], data: RunGraphData) -> None:
    """Write the name and size of each layer once, in its middle, where neither the curve nor a line is."""
    height, width = len(rows), len(levels)
    taken = {row_of(line.size_bytes, height, data.top_bytes) for line in data.lines}
    layers = _stack(data)
    ends = list(accumulate(layer.size_bytes for layer in layers))
    for end, layer in sorted(zip(ends, layers, strict=True), key=lambda pair: -pair[1].size_bytes):
        low, high = (round(edge * height / data.top_bytes) for edge in (end - layer.size_bytes, end))
        free = [y for y in range(low, min(high, height)) if y not in taken]
        if not free or not layer.labels:
            continue
        y = min(free, key=lambda each: abs(2 * each + 1 - low - high))
        row = rows[height - 1 - y]
        for label in (f" {label} " for label in layer.labels):
            flat = [not 0 < level - y * STEPS < STEPS + _CURVE_EIGHTHS for level in levels]  # the curve is elsewhere
            starts = (at for at in (0, width - len(label)) if 0 <= at <= width - len(label))
            start = next((at for at in starts if all(flat[at : at + len(label)])), None)
            if start is not None:
                taken.add(y)
                for x, char in enumerate(label, start=start):
                    row[x] = inked(char, row[x].ground)
                break


_CURVE_EIGHTHS = 4
"""Minimum thickness of the curve, in eighths of a row."""


def axis_rows(data: RunGraphData, *, width: int, end: str = "now") -> tuple[list[Cell], str]:
    """Return the two rows below the graph: the phases of the run by name, and time labels such as ``-5 min``.

    Args:
        data: the run that is drawn above.
        width: columns.
        end: label of the right edge.
    """
    axis, names = timeline_cells(_marks(data, width), width, empty="─"), [" "] * width
    room = data.span_seconds * 12 / max(1, width)  # labels do not overlap at the shortest round interval above this
    steps = [1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 6, 12, 24))]
    step = next((float(step) for step in steps if step >= room), 86_400.0 * max(1, -int(-room // 86_400)))
    slot = data.span_seconds / max(1, width)
    free = max(0, width - len(end))
    names[free:] = end[-width:] if width else ""
    for count in range(1, int(data.span_seconds / step) + 1):
        column = max(0, width - 1 - round(count * step / slot))
        label = _ago(count * step)
        at = max(0, column - len(label) // 2)
        if width and axis[column].char == "─":
            axis[column] = Cell("┴")
        if at + len(label) < free:
            names[at : at + len(label)] = label
            free = at
    return axis, "".join(names)


def _marks(data: RunGraphData, width: int) -> tuple[TimelineMark, ...]:
    return timeline_marks(data.marks, width=width, span_seconds=data.span_seconds, now=data.now)


def graph_top_bytes(gpu_bytes: int | None, *sizes: int | None) -> int:
    """Return the bytes at the top of the graph: those of the GPU, if the run or its budget fills enough of it."""
    most = max((size for size in sizes if size is not None), default=0)
    if gpu_bytes is not None and (not most or gpu_bytes <= MAX_GPU_TO_PEAK * most):
        return max(gpu_bytes, most)
    return max(1, round(most * 1.2))


class _Band(msgspec.Struct, frozen=True):
    """Cells of one row below and above the curve, and the main colour above it."""

    curve: str
    """The colour of the curve."""
    held: Cell
    coming: Cell
    ground: str | None


_FULL = "█"


def _cell(reach: int, band: _Band, mark: str | None) -> Cell:
    """Return the cell of a column whose curve is ``reach`` eighths above the bottom of this row."""
    if 0 < reach < STEPS:
        return Cell(EIGHTHS[reach], band.curve, band.ground)
    if STEPS <= reach < STEPS + _CURVE_EIGHTHS:
        return Cell(_FULL, band.curve)
    if reach > 0:
        return band.held
    return Cell("┊", mark, band.ground) if mark else band.coming


_HELD_SHARE, _COMING_SHARE = 0.62, 0.24
"""Share of a component's colour in held memory and in memory still to come; the rest is background."""


def _bands(data: RunGraphData, height: int, *, ground: str, patterns: bool) -> list[_Band]:
    """Return the look of each row, from the bottom."""
    calm = data.colour or colour_of("no_budget")
    high = data.top_bytes if data.high_bytes is None else data.high_bytes  # what a row has at least is beyond that
    curves = [colour_of("bad") if y * data.top_bytes >= high * height else calm for y in range(height)]
    if data.layers is None:
        return [_Band(curve, Cell(_FULL, curve), Cell(" "), None) for curve in curves]
    unit = data.top_bytes / (height * STEPS)
    layers = _stack(data)
    ends = accumulate(layer.size_bytes for layer in layers)
    numbers = accumulate(layer.size_bytes >= unit * STEPS / 2 for layer in layers)  # thin ones share a pattern
    edges = [
        ((at, layer.colour or ground), round(end / unit)) for at, end, layer in zip(numbers, ends, layers, strict=True)
    ]
    return [_band(cell_parts(edges, y), curve, ground, patterns=patterns) for y, curve in enumerate(curves)]


def _stack(data: RunGraphData) -> list[BarSegment]:
    """Return the layers, from the bottom."""
    if data.layers is None:
        return []
    segments = dict(zip((name for name, _ in data.layers.items()), component_segments(data.layers), strict=True))
    return [*(segments[name] for name in STACK_ORDER), memory_segment("slack", max(0, data.slack_bytes))]


_Parts = Sequence[tuple[tuple[int, str] | None, int]]
"""(Number and colour, eighths) of the layers in a row, from the bottom; None: nothing."""
_PATTERNS = (("▓", " "), ("▒", "░"))
"""Held memory and memory still to come, of every other layer: without colour they are told apart by their patterns."""


def _band(parts: _Parts, curve: str, ground: str, *, patterns: bool) -> _Band:
    most, _ = max(parts, key=lambda part: part[1])
    if patterns:
        held, coming = _PATTERNS[most[0] % len(_PATTERNS)] if most else (_FULL, " ")
        return _Band(curve, Cell(held), Cell(coming), None)
    held_cell, coming_cell = (
        split_cell([(blend(layer[1], ground, share) if layer else blank, n) for layer, n in parts])
        for share, blank in ((_HELD_SHARE, blend(curve, ground, _HELD_SHARE)), (_COMING_SHARE, None))
    )
    return _Band(curve, held_cell, coming_cell, blend(most[1], ground, _COMING_SHARE) if most else None)


def row_of(size_bytes: int, height: int, top_bytes: int) -> int:
    """Return the row in which a size lies, from the bottom."""
    return min(height - 1, size_bytes * height // top_bytes)


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"-{seconds / size:.0f} {unit}"
    return f"-{seconds:.0f} s" if seconds < 60 else f"-{seconds / 60:.1f} min"
