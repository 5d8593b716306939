"""Widget: memory over time in front of the budget, with scale and time axis."""

from ...draw import axis_labels
from ...widgets import CellRows, with_axes
from .run_graph_rows import RunGraphData, axis_rows, run_graph_rows

_AXIS_ROWS = 2


class RunGraph(CellRows):
    """Draws a ``RunGraphData``, and repaints only changed rows.

    Args:
        ascii_only: draw with ASCII characters.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = "RunGraph { height: 1fr; min-height: 1; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(ascii_only=ascii_only, id=id)
        self._data: RunGraphData | None = None
        self._end = "now"

    def show(self, data: RunGraphData, *, end: str = "now") -> None:
        """Draw a run.

        Args:
            data: the run and its budget.
            end: label of the right edge.
        """
        self._data, self._end = data, end
        self._draw()

    def _draw(self) -> None:
        data, width, height = self._data, self.size.width, self.size.height - _AXIS_ROWS
        if data is None or height <= 0:
            return
        labels = axis_labels(data.top_bytes, height, ascii_only=self._ascii_only)
        inner = max(0, width - len(labels[0]))
        ground = self.background_colors[1].hex6
        patterns = self._ascii_only or self.app.no_color
        drawn = run_graph_rows(data, width=inner, height=height, ground=ground, patterns=patterns)
        below = axis_rows(data, width=inner, end=self._end)
        self._show_rows(with_axes(labels, drawn, below))
