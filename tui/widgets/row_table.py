"""Tables that draw their own rows: columns, keys, a cursor, and lines that are painted only when they change.

A table is given rows, says what the cells of a row are, and draws the rows in sight. A line that has not changed is the
same ``Strip`` as before and is not painted again, so that a reading that changes one figure costs one line.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from vramtop.estimator.common.records import replace

from ..draw.labels import CellText, Tone, shorten
from ..keys import bind
from .content_lines import ContentPainter


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    width: int
    """Cells; the last column of text takes the rest of the line."""
    right: bool = False
    """Right-aligned, for numbers."""
    importance: int = 0
    """Columns are taken from the lowest number on, until the line is full; those of 0 always."""


_Column = TypeVar("_Column", bound=Column)


def fit_columns(columns: Sequence[_Column], width: int, gap: int) -> list[_Column]:
    """Return the columns that fit, in order; each takes its width and a gap, and the last text takes the rest."""
    left = width
    chosen = set()
    for column in sorted(columns, key=lambda column: column.importance):
        if column.importance and column.width + gap > left:
            break
        chosen.add(column.name)
        left -= column.width + gap
    shown = [column for column in columns if column.name in chosen]
    widest = next((column for column in reversed(shown) if not column.right), shown[-1])
    return [replace(each, width=max(1, each.width + left)) if each is widest else each for each in shown]


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
MARGIN = 2
"""Cells on the left of the first column, for signs."""
_TONE_STYLES: dict[Tone, tuple[str, str]] = {
    "plain": ("", ""),
    "muted": ("dim", "dim"),
    "good": ("#22c55e", "#15803d"),
    "over": ("bold #f87171", "bold #b91c1c"),
    "under": ("bold #fbbf24", "bold #92400e"),
}
"""Styles on dark and on light ground, by tone."""


def aligned(text: str, column: Column) -> str:
    """Return a text in exactly the width of its column."""
    text = shorten(text, column.width)
    return set_cell_size(f"{text:>{column.width}}" if column.right else text, column.width)


_Row = TypeVar("_Row")
Cells = Sequence[CellText] | Content
"""The cells of a row, or its whole line; of fewer cells than columns, the last takes the room of those that lack."""


class RowTable(ScrollView, Generic[_Row], can_focus=True):
    """Titles above rows, with a cursor, which follows its row once the user has moved it."""

    ALLOW_SELECT = False
    HEADER_LINES: ClassVar[int] = 1
    MARGIN: ClassVar[int] = MARGIN
    """Cells on the left of the first column, for signs."""
    GAP_AROUND: ClassVar[bool] = False
    """Half of the gap between two columns stands before each."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--cursor", "table--header"}
    DEFAULT_CSS = """
    RowTable {
        height: 1fr; min-height: 3; color: $foreground; overflow-x: hidden; overflow-y: auto;
        scrollbar-size-vertical: 1;
    }
    RowTable > .table--cursor { background: $primary 15%; color: $text; }
    RowTable:focus > .table--cursor { background: $primary 35%; }
    RowTable:nocolor > .table--cursor { text-style: reverse; }
    RowTable > .table--header { background: $panel; color: $text; text-style: bold; }
    """

    @dataclass
    class Opened(Message):
        """The user opens a row."""

        row: Any

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.cursor_row = 0
        """Position of the row under the cursor."""
        self.drawn_lines = 0
        """Lines that were drawn so far; the others were shown again as they were."""
        self.filter_words = ""
        """The words that all rows have."""
        self._gap = 2
        """Cells between two columns."""
        self._moved = False
        """The cursor follows its row; before the user has moved it, it stays at the top, in sight."""
        self._rows: Sequence[_Row] = ()
        self._columns: Sequence[Column] = ()
        self._drawn: dict[Hashable, tuple[object, Strip]] = {}
        """By row: what was drawn last, and its line."""
        self._painted: dict[int, Strip] = {}
        """The lines that were painted last, by position."""
        self._painted_width = 0
        self._contents = ContentPainter()

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

    @property
    def titles(self) -> list[str]:
        """The columns' titles, as wide as their columns."""
        titles = ((self.title_of(column), column) for column in self._columns)
        return [f"{title:>{each.width}}" if each.right else f"{title:<{each.width}}" for title, each in titles]

    def key_of(self, row: _Row) -> Hashable:
        """Return what tells a row from others, equal at every reading."""
        raise NotImplementedError

    def cells_of(self, row: _Row) -> Cells:
        """Return the cells of a row in sight."""
        raise NotImplementedError

    def signs_of(self, row: _Row) -> str:  # noqa: ARG002 - for subclasses
        """Return the sign at the beginning of a row, such as that of its fold, as wide as the margin."""
        return " " * self.MARGIN

    def title_of(self, column: Column) -> str:
        """Return the title of a column."""
        return column.name

    def show_rows(self, rows: Sequence[_Row], columns: Sequence[Column] = (), gap: int = 2) -> None:
        """Show these rows in these columns; the cursor stays on its row."""
        followed, self._rows = self.selected, rows
        if followed is not None and self._moved:
            self.cursor_row = self._position_of(followed)
        self.cursor_row = max(0, min(self.cursor_row, len(rows) - 1))
        if (columns, gap) != (self._columns, self._gap):
            self._columns, self._gap = columns, gap
            self._forget_drawn()
        self.virtual_size = Size(self.size.width, len(rows) + self.HEADER_LINES)
        self._repaint()

    def filter_by(self, words: str) -> None:
        """Show only rows with these words; an empty string shows all."""
        self.filter_words = words
        self.lay_out()

    def notify_style_update(self) -> None:
        """Draw all lines again: colours or the focus may have changed."""
        super().notify_style_update()
        self.redraw()

    def redraw(self) -> None:
        """Draw all lines again, in the colours of now."""
        self._forget_drawn()
        self._contents.clear()
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
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def on_click(self, event: Click) -> None:
        """Sort by a clicked title; move the cursor to a clicked row, or open the row if the cursor is there."""
        event.stop()
        row = event.y - self.HEADER_LINES + self.scroll_offset.y
        if event.y < self.HEADER_LINES:
            self.sort_by_title(self._column_at(event.x))
        elif row == self.cursor_row:
            self.action_open()
        elif row < len(self._rows):
            self.move_cursor(row=row)

    def sort_by_title(self, column: Column | None) -> None:
        """Sort by a column whose title was clicked; None: there is none at this place."""

    def on_resize(self, _: Resize) -> None:
        """Fit the rows into the new size, and keep the cursor in sight: other rows may be visible."""
        self.lay_out()
        if self._moved:
            scroll_to_row(self, self.cursor_row, page=self.page)

    def lay_out(self) -> None:
        """Show the rows in the new size."""
        self.show_rows(self._rows, self._columns, self._gap)

    def render_line(self, y: int) -> Strip:
        """Return the titles, or a row."""
        strip = self._painted[y] = self._strip_at(y)
        return strip

    def _position_of(self, followed: _Row) -> int:
        """Return where a row is now; the cursor's place, if it is gone."""
        key = self.key_of(followed)
        return next((at for at, row in enumerate(self._rows) if self.key_of(row) == key), self.cursor_row)

    def _repaint(self) -> None:
        """Refresh the lines that have changed."""
        top, width, height = self.scroll_offset.y, self.size.width, self.size.height
        changed = [y for y in range(height) if self._strip_at(y) is not self._painted.get(y)]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))
        kept = {self.key_of(row) for row in self._rows[top : top + height]} | {"titles", "blank"}
        self._drawn = {key: drawn for key, drawn in self._drawn.items() if key in kept}

    def _forget_drawn(self) -> None:
        self._painted.clear()
        self._drawn.clear()

    def _strip_at(self, y: int) -> Strip:
        """Return the line at this place; the same object as before if it has not changed."""
        if self._painted_width != self.size.width:  # it may be painted before the resize event
            self._forget_drawn()
            self._painted_width = self.size.width
        at = y - self.HEADER_LINES + self.scroll_offset.y
        if y < self.HEADER_LINES:
            style, titles = self.get_component_rich_style("table--header"), self.titles
            text = " " * self.MARGIN + "".join(map(self._spaced, titles))
            return self._kept(
                "titles", titles, lambda: Strip([Segment(text, style)]).adjust_cell_length(self.size.width, style)
            )
        if at >= len(self._rows):
            return self._kept("blank", None, lambda: Strip.blank(self.size.width, self.rich_style))
        row, at_cursor = self._rows[at], at == self.cursor_row
        signs, cells = self.signs_of(row), self.cells_of(row)
        if isinstance(cells, Content):
            state: object = (at_cursor, cells.plain, cells.spans)
            ground = self.get_visual_style("table--cursor") if at_cursor and self.has_focus else self.visual_style
            return self._kept(self.key_of(row), state, lambda: self._contents.draw(cells, ground, self.size.width))
        state = (at_cursor, signs, *cells)
        return self._kept(self.key_of(row), state, lambda: self._draw_cells(cells, signs, at_cursor=at_cursor))

    def _kept(self, key: Hashable, state: object, draw: Callable[[], Strip]) -> Strip:
        """Return the line that was drawn for this state, or draw it."""
        known = self._drawn.get(key)
        if known is None or known[0] != state:
            known = self._drawn[key] = (state, draw())
            self.drawn_lines += 1
        return known[1]

    def _draw_cells(self, cells: Sequence[CellText], signs: str, *, at_cursor: bool) -> Strip:
        ground = self.get_component_rich_style("table--cursor") if at_cursor else self.rich_style
        dark = self.app.current_theme.dark
        columns = list(self._columns)
        if len(cells) < len(columns):
            del columns[len(cells) - 1 :]
            taken = self.MARGIN + sum(column.width + self._gap for column in columns)
            columns.append(Column(name="", width=max(1, self.size.width - taken - self._gap)))
        parts = [(signs, "")]
        for column, cell in zip(columns, cells, strict=True):
            text, style = self._spaced(aligned(cell.text, column)), _TONE_STYLES[cell.tone][not dark]
            if style == parts[-1][1]:
                parts[-1] = (parts[-1][0] + text, style)
            else:
                parts.append((text, style))
        strip = Strip([Segment(text, ground + RichStyle.parse(style)) for text, style in parts])
        return strip.adjust_cell_length(self.size.width, ground)

    def _spaced(self, text: str) -> str:
        before = self._gap // 2 if self.GAP_AROUND else 0
        return " " * before + text + " " * (self._gap - before)

    def _column_at(self, x: int) -> Column | None:
        end = self.MARGIN
        for column in self._columns:
            end += column.width + self._gap
            if x < end:
                return column
        return None


def scroll_to_row(table: Widget, row: int, *, page: int) -> None:
    """Scroll the row into sight if it is not; ``page``: number of rows for which the table has room."""
    top = table.scroll_offset.y
    if page > 0 and not top <= row < top + page:
        target = row - (page - 1 if row > top else 0)
        table.scroll_to(y=target, animate=False, force=True)  # new rows may not have their scrollbar yet
