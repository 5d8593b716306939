"""Tables that draw their own rows: keys, scrolling, a cursor, and lines that are painted only when they change."""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual.events import Click, Resize
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from ..keys import bind

ROW_BINDINGS = (
    bind("list.up", "move(-1)"),
    bind("list.down", "move(1)"),
    bind("list.page_up", "move_page(-1)"),
    bind("list.page_down", "move_page(1)"),
    bind("list.first", "move_to(0)"),
    bind("list.last", "move_to(-1)"),
)
"""Keys that move the cursor from row to row; the table has the actions."""
FOLD_SIGNS = {None: " ", "folded": "▸", "unfolded": "▾"}
"""What stands before a row that has others below it."""
_NARROW = 100
"""Below this width, columns are one cell apart, not two."""
_Row = TypeVar("_Row")


def column_gap(width: int) -> int:
    """Return the cells between two columns of a table."""
    return 1 if width < _NARROW else 2


def scroll_to_row(table: Widget, row: int, *, page: int) -> None:
    """Scroll the row into sight if it is not; ``page``: number of rows for which the table has room."""
    top = table.scroll_offset.y
    if page > 0 and not top <= row < top + page:
        target = row - (page - 1 if row > top else 0)
        table.scroll_to(y=target, animate=False, force=True)  # new rows may not have their scrollbar yet


class RowTable(ScrollView, Generic[_Row], can_focus=True):
    """A line of titles above rows, with a cursor; a line that is the same strip as before is not painted again."""

    ALLOW_SELECT = False
    HEADER_LINES: ClassVar[int] = 1

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.cursor_row = 0
        """Position of the row under the cursor."""
        self._moved = False
        """The cursor follows its row; before the user has moved it, it stays at the top, in sight."""
        self._rows: Sequence[_Row] = ()
        self._painted: dict[int, Strip] = {}
        """The lines that were painted last, by position."""

    @property
    def rows(self) -> Sequence[_Row]:
        """The rows that match the filter, in order."""
        return self._rows

    @property
    def selected(self) -> _Row | None:
        """The row under the cursor."""
        return self._rows[self.cursor_row] if self.cursor_row < len(self._rows) else None

    @property
    def page(self) -> int:
        """Number of rows for which there is room."""
        return max(0, self.size.height - self.HEADER_LINES)

    def notify_style_update(self) -> None:
        """Draw all lines again: colours may have changed."""
        super().notify_style_update()
        self.redraw()

    def redraw(self) -> None:
        """Draw all lines again, in the colours of now."""
        self._forget_drawn()
        self.refresh()

    def move_cursor(self, *, row: int) -> None:
        """Put the cursor on the row at this position, and scroll to it."""
        self.cursor_row, self._moved = max(0, min(row, len(self._rows) - 1)), True
        scroll_to_row(self, self.cursor_row, page=self.page)
        self._repaint()

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.move_cursor(row=self.cursor_row + by)

    def action_move_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self.action_move(by * max(1, self.page - 1))

    def action_move_to(self, row: int) -> None:
        """Move the cursor to the first row, or to the last (-1)."""
        self.move_cursor(row=row if row >= 0 else len(self._rows) - 1)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        raise NotImplementedError

    def on_click(self, event: Click) -> None:
        """Sort by a clicked title; move the cursor to a clicked row, or open the row if the cursor is there."""
        event.stop()
        row = event.y - self.HEADER_LINES + self.scroll_offset.y
        if event.y < self.HEADER_LINES:
            self._sort_at(event.x)
        elif row == self.cursor_row:
            self.action_open()
        elif row < len(self._rows):
            self.move_cursor(row=row)

    def on_resize(self, _: Resize) -> None:
        """Fit the rows into the new size, and keep the cursor in sight: other rows may be visible."""
        self._fit_size()
        if self._moved:
            scroll_to_row(self, self.cursor_row, page=self.page)

    def render_line(self, y: int) -> Strip:
        """Return the titles, or a row."""
        strip = self._painted[y] = self._strip_at(y)
        return strip

    def _repaint(self) -> None:
        """Refresh the lines that have changed."""
        top, width, height = self.scroll_offset.y, self.size.width, self.size.height
        changed = [y for y in range(height) if self._strip_at(y) is not self._painted.get(y)]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))
        self._keep_drawn(self._rows[top : top + height])

    def _forget_drawn(self) -> None:
        """Forget all lines that were drawn; a table adds its own."""
        self._painted.clear()

    def _strip_at(self, y: int) -> Strip:
        """Return the line at this place; the same object as before if it has not changed."""
        raise NotImplementedError

    def _keep_drawn(self, visible: Sequence[_Row]) -> None:
        """Forget what was drawn of other rows than these."""
        raise NotImplementedError

    def _sort_at(self, x: int) -> None:
        """Sort by the title in this cell of the first line."""
        raise NotImplementedError

    def _fit_size(self) -> None:
        """Lay out the table for its new size."""
        raise NotImplementedError
