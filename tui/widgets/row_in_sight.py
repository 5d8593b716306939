"""Keys and scrolling of tables that draw their own rows."""

from textual.binding import Binding
from textual.widget import Widget

ROW_BINDINGS = (
    Binding("up", "move(-1)", "Up", show=False),
    Binding("down", "move(1)", "Down", show=False),
    Binding("pageup", "move_page(-1)", "Page up", show=False),
    Binding("pagedown", "move_page(1)", "Page down", show=False),
    Binding("home,ctrl+home", "move_to(0)", "First", show=False),
    Binding("end,ctrl+end", "move_to(-1)", "Last", show=False),
)
"""Keys that move the cursor from row to row; the table has the actions."""


def scroll_to_row(table: Widget, row: int, *, page: int) -> None:
    """Scroll the row into sight if it is not; ``page``: number of rows for which the table has room."""
    top = table.scroll_offset.y
    if page > 0 and not top <= row < top + page:
        target = row - (page - 1 if row > top else 0)
        table.scroll_to(y=target, animate=False, force=True)  # new rows may not have their scrollbar yet
