"""Memory over time in front of its budget: its scale at the left, the components' letters at the right, time below."""

from ...draw.bars import Cell
from ...draw.memory_graph import axis_labels
from ...widgets.cell_rows import CellRows
from .run_graph_rows import RunGraphData, axis_rows, key_cells, run_graph_rows

_AXIS_ROWS = 2


class RunGraph(CellRows):
    """Draws a ``RunGraphData``; repaints only when what it draws has changed.

    Args:
        ascii_only: draw without block characters.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = "RunGraph { height: 1fr; min-height: 1; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(ascii_only=ascii_only, id=id)
        self._picture: RunGraphData | None = None
        self._end = "now"

    def show(self, picture: RunGraphData, *, end: str = "now") -> None:
        """Draw this from now on.

        Args:
            picture: what to draw.
            end: what the right edge is called.
        """
        self._picture, self._end = picture, end
        self._draw()

    def _draw(self) -> None:
        picture, width, height = self._picture, self.size.width, self.size.height - _AXIS_ROWS
        if picture is None or height <= 0:
            return
        labels = axis_labels(picture.top_bytes, height, ascii_only=self._ascii_only)
        letters = self._ascii_only or self.app.no_color
        key = [] if letters or picture.layers is None else key_cells(picture, height)
        inner = max(0, width - len(labels[0]) - 2 * bool(key))
        ground = self.background_colors[1].hex6
        drawn = run_graph_rows(picture, width=inner, height=height, ground=ground, letters_only=letters)
        rows = [[*(Cell(char) for char in label), *row] for label, row in zip(labels, drawn, strict=False)]
        for row, cell in zip(rows, key, strict=False):
            row += [Cell(" "), cell]
        below = axis_rows(picture, width=inner, end=self._end)
        self._keep([*rows, *([Cell(char) for char in f"{'':{len(labels[0])}}{line}"] for line in below)])
