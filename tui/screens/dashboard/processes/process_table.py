"""Table of the processes on all GPUs; it redraws only changed lines, and its cursor follows a process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from vramtop.monitor.board import Board, ProcessRow

from ....draw import CellText
from ....widgets.table_cell import table_cell
from .process_rows import (
    SORT_KEYS,
    Column,
    ColumnName,
    RowKey,
    SortKey,
    TableRow,
    columns_for,
    in_order,
    matching,
    table_rows,
)

_GAP = 2
_HEADER_LINES = 1
_SORTED_BY: dict[SortKey, ColumnName] = {
    "STATUS": "STATUS", "VRAM": "VRAM GiB", "GPU": "GPU", "DIFF": "DIFF", "PID": "PID", "UP": "UP", "USER": "USER",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Line:
    """A row as it was drawn last."""

    cells: dict[ColumnName, CellText]
    at_cursor: bool
    strip: Strip


class ProcessTable(ScrollView, can_focus=True):
    """The process table: of hundreds of rows it draws only the visible ones that have changed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"processes--cursor", "processes--header"}
    DEFAULT_CSS = """
    ProcessTable {
        height: 1fr; min-height: 3; background: $surface; color: $foreground;
        overflow-x: hidden; scrollbar-size-vertical: 1;
    }
    ProcessTable:focus { background-tint: $foreground 5%; }
    ProcessTable > .processes--cursor { background: $primary 35%; color: $text; }
    ProcessTable > .processes--header { background: $panel; color: $text; text-style: bold; }
    """
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "open",
            "Open",
            key_display="Enter",
            tooltip="attach to the process under the cursor: settings, ranks, memory over time, why it diverges",
        ),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("home,ctrl+home", "move_to(0)", "First", show=False),
        Binding("end,ctrl+end", "move_to(-1)", "Last", show=False),
    ]

    class Opened(Message):
        """The user opens a process."""

        def __init__(self, row: ProcessRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.sort_key: SortKey = "STATUS"
        self.filter_words = ""
        self.cursor_row = 0
        """Position of the row under the cursor."""
        self._all: list[TableRow] = []
        self._rows: list[TableRow] = []
        """Rows that match the filter, in order."""
        self._columns: list[Column] = []
        self._lines: dict[RowKey, _Line] = {}
        """The visible rows."""
        self._painted: dict[int, Strip] = {}
        """The lines that were drawn last, by position."""
        self._header: Strip | None = None
        self._width = 0
        """Width of the drawn lines."""
        self._backgrounds: dict[bool, Style] = {}
        """Style of rows without the cursor and with it."""

    @property
    def row_count(self) -> int:
        """Number of rows that match the filter."""
        return len(self._rows)

    @property
    def rows(self) -> Sequence[TableRow]:
        """The rows that match the filter, in order."""
        return self._rows

    @property
    def titles(self) -> list[str]:
        """The columns' titles."""
        return [self._title(column) for column in self._columns]

    @property
    def selected(self) -> TableRow | None:
        """The row under the cursor."""
        return self._rows[self.cursor_row] if self.cursor_row < len(self._rows) else None

    def show_board(self, board: Board, *, width: int) -> None:
        """Show the board's processes in a table of this width."""
        self._all = table_rows(board)
        gpu_width = max((len(gpu.reading.label) for gpu in board.displayed_gpus), default=0)
        columns = columns_for(width - self.scrollbar_size_vertical, _GAP, gpu_width=gpu_width)
        if columns != self._columns:
            self._columns = columns
            self._clear_drawn()
        self._refresh_rows()

    def sort_by_next(self) -> SortKey:
        """Sort by the next column, and return it."""
        self._sort_by(SORT_KEYS[(SORT_KEYS.index(self.sort_key) + 1) % len(SORT_KEYS)])
        return self.sort_key

    def filter_by(self, words: str) -> None:
        """Show only rows with these words; an empty string shows all."""
        self.filter_words = words
        self._refresh_rows()

    def redraw(self) -> None:
        """Draw all cells again, because the theme has changed."""
        self._clear_drawn()
        self.refresh()

    def notify_style_update(self) -> None:
        """Draw all lines again: colours may have changed."""
        super().notify_style_update()
        self._clear_drawn()

    def move_cursor(self, *, row: int) -> None:
        """Put the cursor on the row at this position, and scroll to it."""
        self.cursor_row = max(0, min(row, len(self._rows) - 1))
        page = self.size.height - _HEADER_LINES
        top = self.scroll_offset.y
        if page > 0 and not top <= self.cursor_row < top + page:
            self.scroll_to(y=self.cursor_row - (page - 1 if self.cursor_row > top else 0), animate=False)
        self._repaint()

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.move_cursor(row=self.cursor_row + by)

    def action_move_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self.action_move(by * max(1, self.size.height - _HEADER_LINES - 1))

    def action_move_to(self, row: int) -> None:
        """Move the cursor to the first row, or to the last (-1)."""
        self.move_cursor(row=row if row >= 0 else len(self._rows) - 1)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        row = self.selected
        if row and row.row:
            self.post_message(self.Opened(row.row))
        elif row:
            self.notify(f"GPU {row.gpu.label}: {row.cells['COMMAND'].text}", markup=False)

    def on_click(self, event: Click) -> None:
        """Sort by a clicked title; move the cursor to a clicked row, or open the row if the cursor is there."""
        event.stop()
        if event.y < _HEADER_LINES:
            self._sort_by_column_at(event.x)
            return
        row = event.y - _HEADER_LINES + self.scroll_offset.y
        if row == self.cursor_row:
            self.action_open()
        elif row < len(self._rows):
            self.move_cursor(row=row)

    def on_resize(self, _: Resize) -> None:
        """Measure again: other rows may be visible."""
        self._measure()

    def render_line(self, y: int) -> Strip:
        """Return the titles, or a row."""
        strip = self._painted[y] = self._strip_at(y)
        return strip

    def _refresh_rows(self) -> None:
        followed = self.selected
        self._rows = in_order(matching(self._all, self.filter_words), self.sort_key)
        keys = [row.key for row in self._rows]
        if followed is not None and followed.key in keys:
            self.cursor_row = keys.index(followed.key)
        self.cursor_row = max(0, min(self.cursor_row, len(keys) - 1))
        self._measure()
        self._repaint()

    def _measure(self) -> None:
        width = sum(column.width + _GAP for column in self._columns)
        self.virtual_size = Size(width, len(self._rows) + _HEADER_LINES)

    def _repaint(self) -> None:
        """Refresh the lines that have changed."""
        top, width, height = self.scroll_offset.y, self.size.width, self.size.height
        changed = [y for y in range(height) if self._strip_at(y) is not self._painted.get(y)]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))
        visible = {row.key for row in self._rows[top : top + height]}
        self._lines = {key: line for key, line in self._lines.items() if key in visible}

    def _strip_at(self, y: int) -> Strip:
        if self._width != self.size.width:  # it may be painted before the resize event
            self._clear_drawn()
            self._width = self.size.width
        if y < _HEADER_LINES:
            if self._header is None:
                self._header = self._draw_header()
            return self._header
        at = y - _HEADER_LINES + self.scroll_offset.y
        if at >= len(self._rows):
            return Strip.blank(self.size.width, self._background(at_cursor=False))
        row = self._rows[at]
        cells, at_cursor = row.cells, at == self.cursor_row
        line = self._lines.get(row.key)
        if line is None or line.at_cursor != at_cursor or line.cells != cells:
            line = self._lines[row.key] = _Line(cells, at_cursor, self._draw_row(cells, at_cursor=at_cursor))
        return line.strip

    def _draw_header(self) -> Strip:
        text = "".join(f" {self._title(column)} " for column in self._columns)
        return self._full_line([Segment(text, self.get_component_rich_style("processes--header"))])

    def _draw_row(self, cells: dict[ColumnName, CellText], *, at_cursor: bool) -> Strip:
        background = self._background(at_cursor=at_cursor)
        dark = self.app.current_theme.dark
        line: list[tuple[str, str]] = []
        for column in self._columns:
            cell = table_cell(cells[column.name], column.width, right=column.right, dark=dark)
            text = f" {set_cell_size(cell.text, column.width)} "
            if line and line[-1][1] == cell.style:
                line[-1] = (line[-1][0] + text, cell.style)
            else:
                line.append((text, cell.style))
        return self._full_line([Segment(text, background + Style.parse(style)) for text, style in line])

    def _background(self, *, at_cursor: bool) -> Style:
        if not self._backgrounds:
            self._backgrounds = {False: self.rich_style, True: self.get_component_rich_style("processes--cursor")}
        return self._backgrounds[at_cursor]

    def _full_line(self, segments: list[Segment]) -> Strip:
        strip = Strip(segments)
        return strip.adjust_cell_length(self.size.width, segments[-1].style if segments else None)

    def _title(self, column: Column) -> str:
        sorted_by = _SORTED_BY[self.sort_key] == column.name
        title = column.name.removesuffix(" GiB" if sorted_by else "") + ("↓" if sorted_by else "")
        return f"{title:>{column.width}}" if column.right else f"{title:<{column.width}}"

    def _sort_by(self, key: SortKey) -> None:
        self.sort_key = key
        self._header = None
        self._refresh_rows()

    def _sort_by_column_at(self, x: int) -> None:
        for column in self._columns:
            x -= column.width + _GAP
            if x < 0:
                keys = [key for key, name in _SORTED_BY.items() if name == column.name]
                if keys:
                    self._sort_by(keys[0])
                return

    def _clear_drawn(self) -> None:
        self._lines.clear()
        self._painted.clear()
        self._backgrounds.clear()
        self._header = None
