"""Keys and scrolling of tables that draw their own rows."""

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


def scroll_to_row(table: Widget, row: int, *, page: int) -> None:
    """Scroll the row into sight if it is not; ``page``: number of rows for which the table has room."""
    top = table.scroll_offset.y
    if page > 0 and not top <= row < top + page:
        target = row - (page - 1 if row > top else 0)
        table.scroll_to(y=target, animate=False, force=True)  # new rows may not have their scrollbar yet
