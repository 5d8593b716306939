"""A line with a label, a bar on a fixed scale, a figure in words, and its recent history."""

import msgspec
from textual.content import Content

from ...draw.labels import FAINT, MUTED
from ...draw.memory_graph import EIGHTHS, Readings, column_sizes

LABEL_WIDTH = 12
_MIN_WIDTH_WITH_HISTORY = 70
_MAX_HISTORY_WIDTH = 60
_MIN_FIGURES_WIDTH = 30
_MAX_FIGURES_WIDTH = 46


class LineShape(msgspec.Struct, frozen=True):
    """Widths of the parts of a line, in cells."""

    bar: int
    figures: int
    history: int


def line_shape(width: int) -> LineShape:
    """Divide a line of this width."""
    room = width - LABEL_WIDTH - 2  # a gap
    figures = min(_MAX_FIGURES_WIDTH, max(_MIN_FIGURES_WIDTH, room * 2 // 5))
    history = min(_MAX_HISTORY_WIDTH, room // 5) if width >= _MIN_WIDTH_WITH_HISTORY else 0
    return LineShape(bar=max(8, room - figures - history), figures=figures, history=history)


def labelled(label: str, text: Content) -> Content:
    """Return a line with a label and a text."""
    return Content.assemble((f"{label:{LABEL_WIDTH}}", MUTED), text)


def bar_line(label: str, bar: Content, words: Content, graph: Content, shape: LineShape) -> Content:
    """Return a line with a bar.

    Args:
        label: at the left.
        bar: as wide as the shape says.
        words: the figure in words.
        graph: its history.
        shape: widths of the parts.
    """
    words = words.truncate(shape.figures, ellipsis=True)
    gap = " " * (shape.figures - words.cell_length)
    return Content.assemble((f"{label:{LABEL_WIDTH}}", MUTED), bar, "  ", words, gap, graph)


_BAR, _REST = "▆", "▁"


def share_bar(share: float | None, width: int, style: str) -> Content:
    """Return a bar of a share of 1, and a thin line to the end of the scale; nothing if the share is unknown."""
    if share is None:
        return Content(" " * width)
    full = round(min(1.0, max(0.0, share)) * width)
    return Content.assemble((_BAR * full, style), (_REST * (width - full), FAINT))


_NONE = "_"
"""Column of a history where the figure was 0."""


def history_line(history: Readings, width: int, *, top: float, style: str, span_seconds: float, now: float) -> Content:
    """Return the history as one row of columns, the latest at the right; a gap where nothing is known.

    Args:
        history: what to draw.
        width: in columns.
        top: the figure of a full column.
        style: of the columns.
        span_seconds: seconds of the full width.
        now: Unix seconds at the right edge.
    """
    if width <= 0:
        return Content()
    steps = len(EIGHTHS) - 2  # full columns would run into those of the line above
    columns = (
        " " if size is None else EIGHTHS[max(1, min(steps, round(size / top * steps)))] if size else _NONE
        for size in column_sizes(history, width, span_seconds, now)
    )
    return Content.styled("".join(columns), style)


def whole_figure(figure: float | None, unit: str = "") -> str | None:
    """Return a whole figure with its unit; None: unknown."""
    return None if figure is None else f"{figure:.0f} {unit}".rstrip()
