"""The two bars of a GPU on the scale of its total memory: what is held now, and the budget of its jobs.

A new kind of memory is a row of ``palette.OTHER_MEMORY``, from which legends are made, and a segment here.
"""

from collections.abc import Sequence
from itertools import pairwise

from textual.content import Content

from vramtop.monitor.board import GpuRow, ProcessRow
from vramtop.monitor.snapshot import GpuReading

from .bars import BarSegment, Cell, component_segments, draw_bar, mark_range, memory_segment
from .palette import NO_JOB, STATUSES, darker, on_colour

PROCESS = "█"
_MIN_PROCESS_CELLS = 1.5
"""Processes of fewer cells are drawn as one segment."""
BUDGET_LINE = "┈"
_SEAM = "▊"
_MARK = "┃"


def held_cells(gpu: GpuRow, width: int) -> list[Cell]:
    """Draw what is held now: by each process, unattributed, and reserved by the driver; the GPU's total must be known.

    Processes with a budget come first, so that they begin where the budget's bar begins.
    """
    reading, total = gpu.reading, gpu.reading.total_bytes or 1
    rows = sorted(gpu.rows, key=lambda row: row.budget is None)
    seen = [row for row in rows if row.budget or (row.process.used_bytes or 0) * width >= _MIN_PROCESS_CELLS * total]
    small = sum(row.process.used_bytes or 0 for row in rows if row not in seen)
    segments = [_process_segment(row, dark=at % 2 == 1) for at, row in enumerate(seen)]
    segments.append(BarSegment(small, PROCESS, NO_JOB if len(seen) % 2 == 0 else darker(NO_JOB)))
    rest = reading.used_bytes if reading.processes is None else reading.remaining_bytes
    segments.append(memory_segment("unattributed", rest or 0, min_one_cell=True))
    segments.append(memory_segment("reserved", _unavailable_bytes(reading), min_one_cell=True))
    return _with_seams(draw_bar(segments, scale_bytes=total, width=width))


def _unavailable_bytes(reading: GpuReading) -> int:
    """Return memory that no job can use: the driver's, or what the host holds of memory that GPU and host share."""
    if not reading.shares_host_memory:
        return reading.reserved_bytes or 0
    if reading.total_bytes is None or reading.used_bytes is None or reading.free_bytes is None:
        return 0
    return max(0, reading.total_bytes - reading.used_bytes - reading.free_bytes)


def budget_cells(gpu: GpuRow, width: int) -> list[Cell] | None:
    """Draw the budget of the known jobs by component, with its range; None if no job is known."""
    components, expected = gpu.components, gpu.expected_bytes
    if components is None or expected is None:
        return None
    scale = gpu.reading.total_bytes or 1
    slack = memory_segment("slack", expected - components.total_bytes)
    cells = draw_bar([*component_segments(components), slack], scale_bytes=scale, width=width)
    low, high = gpu.low_bytes or expected, gpu.high_bytes or expected
    return mark_range(cells, low_bytes=low, high_bytes=high, scale_bytes=scale)


def held_cells_with_budget_mark(gpu: GpuRow, width: int) -> list[Cell]:
    """Draw what is held now, with a mark where the budget expects it to end."""
    cells = held_cells(gpu, width)
    if gpu.expected_bytes is not None and cells:
        at = round(gpu.expected_bytes * width / (gpu.reading.total_bytes or 1)) - 1
        cells[min(width - 1, max(0, at))] = Cell(_MARK)
    return cells


def bar_content(cells: Sequence[Cell]) -> Content:
    """Return the cells with colours: letters on their colour, blocks in it."""
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
    return on_colour(cell.colour) if cell.char.isalpha() or cell.char == BUDGET_LINE else cell.colour


def _process_segment(row: ProcessRow, *, dark: bool) -> BarSegment:
    colour = STATUSES[row.comparison.status].colour if row.comparison else NO_JOB
    return BarSegment(row.process.used_bytes or 0, PROCESS, darker(colour) if dark else colour)


def _with_seams(cells: list[Cell]) -> list[Cell]:
    """Draw a line between two processes: without colour their shades look the same."""
    drawn = list(cells)
    for at, (cell, after) in enumerate(pairwise(cells)):
        if cell.char == after.char == PROCESS and cell.colour != after.colour:
            drawn[at] = Cell(_SEAM, cell.colour)
    return drawn
