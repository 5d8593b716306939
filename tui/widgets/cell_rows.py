"""A graph of sizes over an axis, as rows of cells; it repaints only when they have changed."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.strip import Strip
from textual.widget import Widget

from ..draw.bars import Cell, cell_runs
from ..draw.memory_graph import axis_labels

AxisLines = Sequence[str | Sequence[Cell]]
"""The horizontal axis below a graph: its marks and their labels."""
DrawGraph = Callable[[int, int], tuple[Sequence[Sequence[Cell]], AxisLines]]
"""Draws a graph of so many columns and rows, and the lines below it."""
_AXIS_LINES = 2


class AxesGraph(Widget):
    """A graph of sizes with a scale at the left, and a horizontal axis of two lines below.

    Args:
        id: the widget's id in the DOM.
    """

    _top_bytes = 0
    _lines: Sequence[int] = ()
    _draw_graph: DrawGraph | None = None

    _rows: Sequence[Sequence[Cell]] = ()

    def on_resize(self, _: Resize) -> None:
        """Draw the graph for the new size."""
        self._draw()

    def render_line(self, y: int) -> Strip:
        """Return the row as it was drawn last."""
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        row, ground = self._rows[y], self.rich_style  # the widget's own style, below the colours of the cells
        segments = (Segment(text, ground + _style(colour, behind)) for text, colour, behind in cell_runs(row))
        return Strip(segments, len(row))

    def show_graph(self, top_bytes: int, draw: DrawGraph, *, lines: Sequence[int] = ()) -> None:
        """Draw this graph now, and again for every other size of the widget.

        Args:
            top_bytes: at the top edge.
            draw: draws it.
            lines: sizes of its horizontal lines, which the scale names; the last of two in a row counts.
        """
        self._top_bytes, self._draw_graph, self._lines = top_bytes, draw, lines
        self._draw()

    def _draw(self) -> None:
        height = self.size.height - _AXIS_LINES
        if self._draw_graph is None or height <= 0:
            return
        labels = axis_labels(self._top_bytes, height, lines=self._lines)
        rows, below = self._draw_graph(max(0, self.size.width - len(labels[0])), height)
        graph = [[*(Cell(char) for char in label), *row] for label, row in zip(labels, rows, strict=False)]
        margin = [Cell(" ")] * len(labels[0])
        axes = ([Cell(each) if isinstance(each, str) else each for each in line] for line in below)
        drawn = [*graph, *([*margin, *line] for line in axes)]
        if drawn != self._rows:
            self._rows = drawn
            self.refresh()


@lru_cache(maxsize=64)
def _style(colour: str | None, ground: str | None) -> Style:
    return Style(color=colour, bgcolor=ground)
