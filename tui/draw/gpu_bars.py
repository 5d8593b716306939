"""The two bars of a GPU on one scale, its total memory: what is held now, and what its jobs should take."""

from collections.abc import Sequence
from itertools import pairwise

from textual.content import Content

from vramtop.monitor.board.board import GpuRow, ProcessRow
from vramtop.monitor.snapshot.snapshot import GpuReading

from .bars import BarSegment, Cell, component_segments, draw_bar, mark_range
from .palette import STATUSES, darker

PROCESS = "█"
UNATTRIBUTED = BarSegment(0, "▓", "#788497")
RESERVED = BarSegment(0, "░", "#788497")
SLACK = BarSegment(0, "·", "#788497")
"""What the allocator keeps beyond the components."""
NO_JOB = "#4d85cb"
_OWN_CELLS = 1.5
"""A process of fewer cells is drawn together with other small ones."""
BUDGET_LINE = "┈"
_SEAM = "▊"
_MARK = "┃"


def held_cells(gpu: GpuRow, width: int) -> list[Cell]:
    """What is held now: by process, by nobody seen here, and by the driver. The GPU's total must be known.

    Processes that have a budget come first, so that they begin where the budget begins; those too small for a stretch
    of their own share one.
    """
    reading, total = gpu.reading, gpu.reading.total_bytes or 1
    rows = sorted(gpu.rows, key=lambda row: row.budget is None)
    seen = [row for row in rows if row.budget or (row.process.used_bytes or 0) * width >= _OWN_CELLS * total]
    small = sum(row.process.used_bytes or 0 for row in rows if row not in seen)
    parts = [_process_part(row, dark=at % 2 == 1) for at, row in enumerate(seen)]
    parts.append(BarSegment(small, PROCESS, NO_JOB if len(seen) % 2 == 0 else darker(NO_JOB)))
    rest = reading.used_bytes if reading.processes is None else reading.remaining_bytes
    parts.append(BarSegment(rest or 0, UNATTRIBUTED.char, UNATTRIBUTED.colour, min_one_cell=True))
    parts.append(BarSegment(_out_of_reach(reading), RESERVED.char, RESERVED.colour, min_one_cell=True))
    return _with_seams(draw_bar(parts, scale_bytes=total, width=width))


def _out_of_reach(reading: GpuReading) -> int:
    """What no job can have: the driver's part, or what the rest of the machine holds of memory that is shared."""
    if not reading.shares_host_memory:
        return reading.reserved_bytes or 0
    if reading.total_bytes is None or reading.used_bytes is None or reading.free_bytes is None:
        return 0
    return max(0, reading.total_bytes - reading.used_bytes - reading.free_bytes)


def budget_cells(gpu: GpuRow, width: int) -> list[Cell] | None:
    """What its known jobs should take, by component, and the range of their sum; None when no job is known."""
    components, expected = gpu.components, gpu.expected_bytes
    if components is None or expected is None:
        return None
    scale = gpu.reading.total_bytes or 1
    slack = BarSegment(expected - components.total_bytes, SLACK.char, SLACK.colour)
    cells = draw_bar([*component_segments(components), slack], scale_bytes=scale, width=width)
    low, high = gpu.low_bytes or expected, gpu.high_bytes or expected
    return mark_range(cells, low_bytes=low, high_bytes=high, scale_bytes=scale)


def held_cells_with_budget_mark(gpu: GpuRow, width: int) -> list[Cell]:
    """The held bar with one mark where the budget expects it to end."""
    cells = held_cells(gpu, width)
    if gpu.expected_bytes is not None and cells:
        at = round(gpu.expected_bytes * width / (gpu.reading.total_bytes or 1)) - 1
        cells[min(width - 1, max(0, at))] = Cell(_MARK)
    return cells


def bar_content(cells: Sequence[Cell]) -> Content:
    """The cells in colour: letters stand on their colour, blocks are drawn in it."""
    line: list[tuple[str, str]] = []
    for cell in cells:
        style = _style(cell)
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + cell.char, style)
        else:
            line.append((cell.char, style))
    return Content.assemble(*line)


def _style(cell: Cell) -> str:
    if cell.colour is None:
        return "bold" if cell.char == _MARK else ""
    return f"#0b1220 on {cell.colour}" if cell.char.isalpha() or cell.char == BUDGET_LINE else cell.colour


def _process_part(row: ProcessRow, *, dark: bool) -> BarSegment:
    colour = STATUSES[row.comparison.status].colour if row.comparison else NO_JOB
    return BarSegment(row.process.used_bytes or 0, PROCESS, darker(colour) if dark else colour)


def _with_seams(cells: list[Cell]) -> list[Cell]:
    """A seam where one process ends and the next begins: shades alone are lost without colour."""
    drawn = list(cells)
    for at, (cell, after) in enumerate(pairwise(cells)):
        if cell.char == after.char == PROCESS and cell.colour != after.colour:
            drawn[at] = Cell(_SEAM, cell.colour)
    return drawn
