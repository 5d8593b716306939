"""A widget that draws its rows itself, and repaints only when they have changed."""

from textual.events import Resize
from textual.strip import Strip
from textual.widget import Widget

from ..draw.bars import Cell
from .cells import cells_strip


class DrawnRows(Widget):
    """Rows of cells, drawn anew for another size.

    Args:
        ascii_only: draw without block characters.
        id: the widget's id in the DOM.
        classes: its CSS classes.
    """

    def __init__(
        self,
        *,
        ascii_only: bool = False,
        id: str | None = None,  # noqa: A002 - Textual's own name for it
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._ascii_only = ascii_only
        self._rows: list[list[Cell]] = []

    def on_resize(self, _: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def render_line(self, y: int) -> Strip:
        """The row ``y`` as drawn last."""
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        return cells_strip(self._rows[y], self.rich_style)

    def _draw(self) -> None:
        raise NotImplementedError

    def _keep(self, rows: list[list[Cell]]) -> None:
        """Show these rows from now on."""
        if rows != self._rows:
            self._rows = rows
            self.refresh()
