"""Tables that draw their own rows: keys, scrolling, a cursor, and lines that are painted only when they change."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from rich.text import Text
from textual.content import Content
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from ..draw.labels import CellText, Tone, shorten
from ..draw.palette import chosen_colour
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


# A cell of a table: cut to its column, coloured by its tone, without markup.


_TONE_STYLES: dict[Tone, tuple[str, str]] = {
    "plain": ("", ""),
    "muted": ("dim", "dim"),
    "good": ("#22c55e", "#15803d"),
    "over": ("bold #f87171", "bold #b91c1c"),
    "under": ("bold #fbbf24", "bold #92400e"),
}
"""Styles on dark and on light ground, by tone."""
_NAMES: dict[Tone, tuple[str, str]] = {
    "good": ("on_budget", "good"),
    "over": ("over", "bad"),
    "under": ("under", "warning"),
}
"""Names of the user's colours that a tone has in place of its own."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A drawn cell."""

    text: str
    style: str

    def __rich__(self) -> Text:
        return Text(self.text, self.style, no_wrap=True, overflow="ellipsis", end="")


def table_cell(cell: CellText, width: int, *, right: bool, dark: bool) -> TableCell:
    """Return the cell for a column of this width, on dark or light ground."""
    text = shorten(cell.text, width)
    style = _TONE_STYLES[cell.tone][not dark]
    if chosen := chosen_colour(*_NAMES.get(cell.tone, ())):
        style = f"{style.rpartition(' ')[0]} {chosen}".strip()
    return TableCell(f"{text:>{width}}" if right else text, style)


# Static text that is repainted only when it has changed.


class StaticLines(Static):
    """A ``Static`` that compares before it updates: most lines stay the same for seconds."""

    DEFAULT_CSS = "StaticLines { height: auto; text-wrap: nowrap; }"

    _shown: Content | None = None

    def show(self, content: Content, *, layout: bool = False) -> None:
        """Show the content.

        Args:
            content: one line or several.
            layout: the height may have changed.
        """
        if self._shown is None or not self._shown.is_same(content):
            before, self._shown = self._shown, content
            self.update(content, layout=layout and self._height(before) != self._height(content))

    def _height(self, content: Content | None) -> int:
        """Return the rows that the content takes: laying out a screen again costs many times more than a repaint."""
        width = self.content_size.width
        return -1 if content is None or not width else content.get_height(self.styles.get_rules(), width)

    @property
    def shown(self) -> Content:
        """The content that is shown."""
        return self._shown or Content()


# Lines of content, each of which is repainted only when it has changed.


class ContentLines(ScrollView, can_focus=False):
    """Lines as wide as the widget, which scroll if there is no room for all of them."""

    DEFAULT_CSS = "ContentLines { overflow: hidden hidden; scrollbar-size-vertical: 1; }"
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._lines: list[Content] = []
        self._strips: dict[int, Strip] = {}
        """Lines that have been drawn, by number."""
        self._width = 0
        """Width of the drawn lines."""
        self._styles: dict[tuple[str | Style, ...], RichStyle] = {}
        """The combined style, by the styles that lie over each other, the lowest first."""

    @property
    def lines(self) -> Sequence[Content]:
        """All lines, also those that are scrolled out of view."""
        return self._lines

    @property
    def shown(self) -> Content:
        """All lines as one text."""
        return Content("\n").join(self._lines)

    def show_lines(self, lines: Sequence[Content]) -> None:
        """Show these lines."""
        before, self._lines = self._lines, list(lines)
        common = min(len(before), len(self._lines))
        changed = [at for at in range(common) if not _are_equal(before[at], self._lines[at])]
        changed += range(common, max(len(before), len(self._lines)))
        for at in changed:
            self._strips.pop(at, None)
        self.virtual_size = Size(self.size.width, len(self._lines))
        if changed:
            top, width = self.scroll_offset.y, self.size.width
            self.refresh(*(Region(0, at - top, width, 1) for at in changed))

    def render_line(self, y: int) -> Strip:
        """Return the line, which is drawn again only if it has changed."""
        at = y + self.scroll_offset.y
        if self._width != self.size.width:  # it may be painted before it gets its resize event
            self._strips.clear()
            self._width = self.size.width
        if at >= len(self._lines) or not self.size.width:
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._strips.get(at)
        if strip is None:
            strip = self._strips[at] = self._draw(self._lines[at], self._style_of(at))
        return strip

    def notify_style_update(self) -> None:
        """Draw all lines again: colours may have changed."""
        super().notify_style_update()
        self._strips.clear()
        self._styles.clear()

    def _style_of(self, at: int) -> Style:  # noqa: ARG002 - for subclasses that draw some lines in another style
        return self.visual_style

    def _draw(self, line: Content, base: Style) -> Strip:
        """Draw the line in the widget's width; Textual also wraps and aligns, which takes several times as long."""
        text, spans, width = line.plain, line.spans, self.size.width
        cuts = sorted({0, len(text), *(cut for span in spans for cut in span[:2])})
        segments = []
        for start, end in pairwise(cuts):
            over = [span.style for span in spans if span.start <= start and span.end >= end]
            segments.append(Segment(text[start:end], self._rich_style(base, *over)))
        return Strip(segments).adjust_cell_length(width, self._rich_style(base))

    def _rich_style(self, base: Style, *over: str | Style) -> RichStyle:
        key = (base, *over)
        known = self._styles.get(key)
        if known is None:
            style = base
            for each in over:
                style += Style.parse(each) if isinstance(each, str) else each
            known = self._styles[key] = style.rich_style
        return known


def _are_equal(one: Content, other: Content) -> bool:
    return one is other or one.is_same(other)
