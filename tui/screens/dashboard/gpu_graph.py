"""The graph of a GPU's memory over time as lines of text: the phases of its job, and when it left its budget."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content

from vramtop.estimator.common.sizes import GIB, format_gib

from ...draw.bars import Cell
from ...draw.gpu_bars import BUDGET_LINE, bar_content, held_colour
from ...draw.labels import MUTED, run_moments, worst_row
from ...draw.memory_graph import Readings, TimelineMark, graph_levels, level_rows, timeline_cells, timeline_marks
from ...draw.palette import colour_of, ink_on
from .panel_shape import PanelShape, panel_line

if TYPE_CHECKING:
    from vramtop.monitor.board.board import GpuRow


_SPANS_SECONDS = (60.0, 300.0, 900.0, 3600.0)
_MIN_HEIGHT_WITH_TIMELINE = 4


def graph_lines(gpu: GpuRow, history: Readings, shape: PanelShape, now: float) -> list[Content]:
    """Return the lines of the graph, from the top down.

    Args:
        gpu: the GPU to show.
        history: its used memory over time.
        shape: size of the panel.
        now: time of the latest reading, in Unix seconds.
    """
    top = gpu.reading.total_bytes
    if not top or shape.graph_height <= 0:
        return [Content()] * max(0, shape.graph_height)
    span = graph_span(history, now)
    timeline = shape.graph_height >= _MIN_HEIGHT_WITH_TIMELINE
    height = shape.graph_height - timeline
    row = worst_row(gpu.rows)
    held = sum(row.process.used_bytes or 0 for row in gpu.rows_with_budget)
    beside = max(0, (gpu.reading.used_bytes or held) - held)
    judged = gpu.expected_bytes is not None and not (row and row.comparison and row.comparison.is_guess)
    graph = _Graph(
        levels=graph_levels(history, width=shape.bar_width, height=height, top_bytes=top, span_seconds=span, now=now),
        height=height,
        top_bytes=top,
        span_seconds=span,
        colour=held_colour(row) if row else colour_of("no_budget"),
        expected_bytes=None if gpu.expected_bytes is None else gpu.expected_bytes + beside,
        high_bytes=gpu.high_bytes + beside if judged and gpu.high_bytes is not None else None,
        seen_bytes=max((size for _, size in history if size is not None), default=None),
        beside_bytes=beside,
        marks=timeline_marks(run_moments(row), width=shape.bar_width, span_seconds=span, now=now) if row else (),
        timeline=timeline,
    )
    return list(_drawn(graph, shape, colour_of("bad"), colour_of("neutral")))


def graph_span(history: Readings, now: float) -> float:
    """Return the seconds that a graph shows: the shortest span that contains the history."""
    age = now - history[0][0] if history else 0.0
    return next((span for span in _SPANS_SECONDS if age <= span), _SPANS_SECONDS[-1])


class _Graph(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a graph shows."""

    levels: tuple[int, ...]
    height: int
    """Rows of the curve."""
    top_bytes: int
    span_seconds: float
    colour: str
    expected_bytes: int | None
    high_bytes: int | None
    """Where the memory beyond the budget begins; None: not known."""
    seen_bytes: int | None
    beside_bytes: int
    """Memory of other processes, above which the lines of the budget lie."""
    marks: tuple[TimelineMark, ...]
    timeline: bool
    """There is a row for the names of the marks."""

    def row_of(self, size_bytes: int) -> int:
        """Return the row in which a size lies, from the top."""
        return self.height - 1 - min(self.height - 1, size_bytes * self.height // self.top_bytes)


_UPPER_BOUND, _MOMENT = "┄", "┊"


@lru_cache(maxsize=64)
def _drawn(graph: _Graph, shape: PanelShape, beyond: str, bound_colour: str) -> tuple[Content, ...]:
    """Return the lines; cached, as a column spans several readings and rarely changes."""
    rows = level_rows(graph.levels, graph.height, graph.colour)
    if graph.high_bytes is not None and graph.high_bytes < graph.top_bytes:
        bound = graph.row_of(graph.high_bytes)
        for row in rows[:bound]:
            row[:] = [Cell(cell.char, beyond) if cell.colour else cell for cell in row]
        rows[bound] = [Cell(_UPPER_BOUND, bound_colour) if cell.char == " " else cell for cell in rows[bound]]
    for mark in (mark for mark in graph.marks if mark.colour):
        for row in rows:
            if row[mark.column].char == " ":
                row[mark.column] = Cell(_MOMENT, mark.colour)
    if graph.expected_bytes is not None:
        row = rows[graph.row_of(graph.expected_bytes)]
        for x, cell in enumerate(row):
            if cell.char in " █┄┊":  # the curve's own edge stays as it is
                ground = cell.colour if cell.char == "█" else None
                row[x] = Cell(BUDGET_LINE, ground and ink_on(ground), ground)
    if graph.timeline:
        rows.append(timeline_cells(graph.marks, shape.bar_width))
    labels = [""] * len(rows)
    labels[0] = f"{format_gib(graph.top_bytes, digits=0)} GiB"
    labels[-1] = f"{graph.span_seconds / 60:.0f} min"
    notes = _notes(graph, len(rows))
    return tuple(
        panel_line(label, bar_content(cells), Content.styled(note, MUTED), shape)
        for label, cells, note in zip(labels, rows, notes, strict=True)
    )


_SHOWN_BESIDE_BYTES = GIB // 10


def _notes(graph: _Graph, lines: int) -> list[str]:
    """Return what stands right of each line: a line of the budget is named where it is, and the peak where room is."""
    notes = [""] * lines
    if graph.high_bytes is not None:
        notes[graph.row_of(graph.high_bytes)] = f"{_UPPER_BOUND * 2} at most"
    if graph.expected_bytes is not None:
        row, others = graph.row_of(graph.expected_bytes), graph.beside_bytes
        words = (
            f"{BUDGET_LINE * 2} expected{', at most' if notes[row] else ''}"  # the bar of the budget has the figures
        )
        notes[row] = words + (f", plus {format_gib(others)} of others" if others >= _SHOWN_BESIDE_BYTES else "")
    if "" in notes:
        notes[notes.index("")] = f"peak seen {format_gib(graph.seen_bytes)}"
    return notes
