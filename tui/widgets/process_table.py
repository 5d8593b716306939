"""All processes on all GPUs in one table that changes cell by cell and keeps its cursor on the same process."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.events import Click
from textual.message import Message
from textual.widgets import DataTable

from vramtop.monitor.board import Board, ProcessRow

from ..table_rows import (
    SORT_KEYS,
    CellText,
    Column,
    ColumnName,
    SortKey,
    TableRow,
    columns_for,
    in_order,
    matching,
    table_rows,
)
from .table_cell import TableCell, table_cell

_GAP = 2
_MANY = 50
"""So many rows coming and going at once are laid out anew: one by one takes longer."""
_SORTED_BY: dict[SortKey, ColumnName] = {
    "STATUS": "STATUS", "VRAM": "VRAM GiB", "GPU": "GPU", "DIFF": "DIFF", "PID": "PID", "UP": "UP", "USER": "USER",
}  # fmt: skip


class ProcessTable(DataTable[TableCell]):
    """The process table."""

    DEFAULT_CSS = """
    ProcessTable { height: 1fr; min-height: 3; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    ProcessTable > .datatable--cursor, ProcessTable:focus > .datatable--cursor {
        background: $primary 35%; color: $text; text-style: none;
    }
    ProcessTable > .datatable--header { background: $panel; color: $text; text-style: bold; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open", key_display="Enter"),
    ]

    class Chosen(Message):
        """The user wants to know more about a process."""

        def __init__(self, row: ProcessRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id, cursor_type="row", cell_padding=_GAP // 2, cursor_foreground_priority="renderable")
        self.sort_key: SortKey = "STATUS"
        self.filter_words = ""
        self._all: list[TableRow] = []
        self._shown: dict[str, TableRow] = {}
        self._drawn: dict[str, dict[ColumnName, TableCell]] = {}
        self._said: dict[str, dict[ColumnName, CellText]] = {}
        self._columns: list[Column] = []

    def show_board(self, board: Board, *, width: int) -> None:
        """Show the board's processes in a table of this width."""
        self._all = table_rows(board)
        gpu_width = max((len(gpu.reading.label) for gpu in board.shown), default=0)
        self._lay_out(columns_for(width - self.scrollbar_size_vertical, _GAP, gpu_width=gpu_width))
        self._refresh_rows()

    def sort_by_next(self) -> SortKey:
        """Sort by the next thing there is to sort by, and say which."""
        self.sort_key = SORT_KEYS[(SORT_KEYS.index(self.sort_key) + 1) % len(SORT_KEYS)]
        self._title_columns()
        self._refresh_rows()
        return self.sort_key

    def filter_by(self, words: str) -> None:
        """Show only rows with these words; an empty string shows all."""
        self.filter_words = words
        self._refresh_rows()

    def redraw(self) -> None:
        """Draw all cells again, because the theme has changed."""
        self._drawn.clear()
        self._columns.clear()

    @property
    def chosen(self) -> TableRow | None:
        """The row that the cursor is on."""
        key = self._key_at_cursor()
        return None if key is None else self._shown.get(key)

    def on_click(self, event: Click) -> None:
        """A click on the row under the cursor counts in every column; ``DataTable`` takes the row from the meta."""
        if event.style.meta.get("row") == self.cursor_row:
            self.cursor_coordinate = Coordinate(self.cursor_row, event.style.meta["column"])

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter or a click on the row under the cursor."""
        event.stop()
        row = self._shown.get(event.row_key.value or "")
        if row and row.row:
            self.post_message(self.Chosen(row.row))
        elif row:
            self.notify(f"GPU {row.gpu.label}: {row.cells['COMMAND'].text}", markup=False)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a column's title sorts by it."""
        event.stop()
        for key, name in _SORTED_BY.items():
            if event.column_key.value == name:
                self.sort_key = key
                self._title_columns()
                self._refresh_rows()

    def _refresh_rows(self) -> None:
        if not self._columns:
            return
        rows = in_order(matching(self._all, self.filter_words), self.sort_key)
        at_cursor = self._key_at_cursor()
        self._shown = {row.key: row for row in rows}
        gone = [key for key in self._drawn if key not in self._shown]
        come = [row for row in rows if row.key not in self._drawn]
        if len(gone) + len(come) > _MANY:
            self._fill(rows)
        else:
            for key in gone:
                self.remove_row(key)
                del self._drawn[key], self._said[key]
            for row in rows:
                self._put(row)
            self._put_in_order([row.key for row in rows])
        self._follow(at_cursor)

    def _fill(self, rows: Sequence[TableRow]) -> None:
        self.clear()
        self._drawn.clear()
        self._said.clear()
        for row in rows:
            self._put(row)

    def _put(self, row: TableRow) -> None:
        """Add the row, or change those of its cells that say something else now."""
        drawn, said = self._drawn.get(row.key), self._said.get(row.key)
        self._said[row.key] = row.cells
        if drawn is None or said is None:
            cells = {column.name: self._draw(row.cells[column.name], column) for column in self._columns}
            self._drawn[row.key] = cells
            self.add_row(*cells.values(), key=row.key)
        elif said != row.cells:
            for column in self._columns:
                if said[column.name] != row.cells[column.name]:
                    cell = drawn[column.name] = self._draw(row.cells[column.name], column)
                    self.update_cell(row.key, column.name, cell)

    def _put_in_order(self, keys: list[str]) -> None:
        if [row.key.value for row in self.ordered_rows] == keys:
            return
        first = self._columns[0].name
        places = {id(self._drawn[key][first]): at for at, key in enumerate(keys)}
        self.sort(first, key=lambda cell: places[id(cell)])

    def _follow(self, key: str | None) -> None:
        if key in self._shown:
            self.move_cursor(row=self.get_row_index(key), scroll=False)

    def _key_at_cursor(self) -> str | None:
        if not self.is_valid_coordinate(Coordinate(self.cursor_row, 0)):
            return None
        return self.coordinate_to_cell_key(Coordinate(self.cursor_row, 0)).row_key.value

    def _lay_out(self, columns: list[Column]) -> None:
        if columns == self._columns:
            return
        at_cursor = self._key_at_cursor()
        self.clear(columns=True)
        self._drawn.clear()
        self._columns = columns
        for column in columns:
            self.add_column(self._title(column), width=column.width, key=column.name)
        self._refresh_rows()
        self._follow(at_cursor)

    def _title_columns(self) -> None:
        for column, shown in zip(self._columns, self.ordered_columns, strict=True):
            shown.label = self._title(column)
        self._update_count += 1
        self.refresh()

    def _title(self, column: Column) -> Text:
        sorted_by = _SORTED_BY[self.sort_key] == column.name
        title = column.name.removesuffix(" GiB" if sorted_by else "") + ("↓" if sorted_by else "")
        return Text(f"{title:>{column.width}}" if column.right else title, no_wrap=True)

    def _draw(self, cell: CellText, column: Column) -> TableCell:
        return table_cell(cell, column.width, right=column.right, dark=self.app.current_theme.dark)
