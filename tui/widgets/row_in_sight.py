"""Scrolling of tables that draw their own rows."""

from textual.widget import Widget


def scroll_to_row(table: Widget, row: int, *, page: int) -> None:
    """Scroll the row into sight if it is not; ``page``: number of rows for which the table has room."""
    top = table.scroll_offset.y
    if page > 0 and not top <= row < top + page:
        target = row - (page - 1 if row > top else 0)
        table.scroll_to(y=target, animate=False, force=True)  # new rows may not have their scrollbar yet
