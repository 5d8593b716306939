"""The graph of a GPU's memory over time as lines of text: the phases of its job, and when it left its budget."""

from textual.content import Content

from vramtop.estimator.common.sizes import GIB, format_gib
from vramtop.monitor.board.board import GpuRow

from ...draw.gpu_bars import bar_content, held_colour
from ...draw.labels import MUTED, run_moments, worst_row
from ...draw.memory_graph import Readings, timeline_cells, timeline_marks
from ...draw.palette import colour_of
from ...draw.run_graph import BOUND, EXPECTED, LevelLine, RunGraphData, row_of, run_graph_rows
from .panel_shape import PanelShape, panel_line

_SPANS_SECONDS = (60.0, 300.0, 900.0, 3600.0)
_MIN_HEIGHT_WITH_TIMELINE = 4
_SHOWN_BESIDE_BYTES = GIB // 10


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
    beside = max(0, (gpu.reading.used_bytes or held) - held)  # memory of others, above which the budget's lines lie
    judged = gpu.expected_bytes is not None and not (row and row.comparison and row.comparison.is_guess)
    high = gpu.high_bytes + beside if judged and gpu.high_bytes is not None else None
    notes = [""] * shape.graph_height
    lines = []
    if high is not None:
        notes[height - 1 - row_of(high, height, top)] = f"{BOUND * 2} at most"
        lines += [LevelLine(high, BOUND, colour_of("neutral"))] if high < top else []
    if gpu.expected_bytes is not None:
        expected = LevelLine(gpu.expected_bytes + beside, EXPECTED)
        lines.append(expected)
        y = height - 1 - row_of(expected.size_bytes, height, top)
        others = f", plus {format_gib(beside)} of others" if beside >= _SHOWN_BESIDE_BYTES else ""
        notes[y] = f"{EXPECTED * 2} expected{', at most' if notes[y] else ''}{others}"
    if "" in notes:
        seen = max((size for _, size in history if size is not None), default=None)
        notes[notes.index("")] = f"peak seen {format_gib(seen)}"
    data = RunGraphData(
        history=history,
        top_bytes=top,
        span_seconds=span,
        now=now,
        lines=tuple(lines),
        marks=run_moments(row) if row else (),
        high_bytes=high,
        colour=held_colour(row) if row else None,
    )
    rows = run_graph_rows(data, width=shape.bar_width, height=height)
    if timeline:
        marks = timeline_marks(data.marks, width=shape.bar_width, span_seconds=span, now=now)
        rows.append(timeline_cells(marks, shape.bar_width))
    labels = [""] * len(rows)
    labels[0] = f"{format_gib(top, digits=0)} GiB"
    labels[-1] = f"{span / 60:.0f} min"
    return [
        panel_line(label, bar_content(cells), Content.styled(note, MUTED), shape)
        for label, cells, note in zip(labels, rows, notes, strict=True)
    ]


def graph_span(history: Readings, now: float) -> float:
    """Return the seconds that a graph shows: the shortest span that contains the history."""
    age = now - history[0][0] if history else 0.0
    return next((span for span in _SPANS_SECONDS if age <= span), _SPANS_SECONDS[-1])
