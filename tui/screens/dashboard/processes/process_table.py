"""Table of the runs and processes on all GPUs; it redraws only changed lines, and its cursor follows a row."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from vramtop.monitor.board import Board, ProcessRow
from vramtop.monitor.snapshot import Demand

from ....widgets import RowTable, column_gap
from .columns import (
    PROCESS_COLUMNS,
    Column,
    ColumnName,
    columns_for,
    default_columns,
    figure_demand,
    is_figure,
)
from .keys import TABLE_KEYS
from .marks import Marks
from .process_rows import SORTED_BY, SortKey, TableRow, next_sort_key, position_of
from .row_painter import MARGIN, LineStyles, RowPainter
from .table_views import VIEWS, TableView, ViewName
from .tree_reader import TreeReader


class ProcessTable(RowTable[TableRow], can_focus=True):
    """The process table: of hundreds of rows it draws only the visible ones that have changed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"processes--cursor", "processes--header"}
    DEFAULT_CSS = """
    ProcessTable {
        height: 1fr; min-height: 3; background: $surface; color: $foreground;
        overflow-x: hidden; scrollbar-size-vertical: 1;
    }
    ProcessTable:focus { background-tint: $foreground 5%; }
    ProcessTable > .processes--cursor { background: $primary 15%; color: $text; }
    ProcessTable:focus > .processes--cursor { background: $primary 35%; }
    ProcessTable > .processes--header { background: $panel; color: $text; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*TABLE_KEYS]

    class Opened(Message):
        """The user opens a process."""

        def __init__(self, row: ProcessRow) -> None:
            super().__init__()
            self.row = row

    class Folded(Message):
        """The user has folded or unfolded a row, or changed the view: the table has more or fewer rows."""

    class Marked(Message):
        """The marked processes have changed."""

    class DemandChanged(Message):
        """It shows figures that are read on demand, of other processes than before."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.sort_key: SortKey = "STATUS"
        self.filter_words = ""
        self.marks = Marks()
        self._view = TableView()
        self._painter = RowPainter(self._line_styles)
        self._tree_reader = TreeReader(self._view, self.call_later, self._refresh_rows)
        self._board_width = 0
        """Width for which the columns were chosen."""
        self._wanted: Sequence[ColumnName] | None = None
        """The columns that the user wants, the most important first; None: the default."""

    @property
    def row_count(self) -> int:
        """Number of rows that match the filter."""
        return len(self._rows)

    @property
    def needed_rows(self) -> int:
        """Number of rows without a filter."""
        return self._view.row_count

    @property
    def view(self) -> ViewName:
        """What the rows are."""
        return self._view.name

    @property
    def titles(self) -> list[str]:
        """The columns' titles."""
        return [self._title(column) for column in self._painter.columns]

    @property
    def columns(self) -> Sequence[ColumnName]:
        """The columns for which there is room."""
        return [column.name for column in self._painter.columns]

    @property
    def demand(self) -> Demand:
        """The figures that its columns show, of the processes in sight; of all those by which it is sorted."""
        top = self.scroll_offset.y
        rows = self._rows[top : top + self.page]
        in_sight = (key for row in rows if row.ancestor is None for key in row.process_keys)
        return figure_demand(self.columns, SORTED_BY[self.sort_key], in_sight)

    def show_board(self, board: Board, *, width: int) -> None:
        """Show the board's processes in a table of this width."""
        self._view.show_board(board)
        self._board_width = width
        if self.marks.show_board(board):
            self.post_message(self.Marked())
        self._refresh_rows()
        self._tree_reader.read()

    def show_view(self, name: ViewName) -> None:
        """Show runs, the tree or all processes."""
        self._view.name = name
        self._refresh_rows()
        self._tree_reader.read()
        self.post_message(self.Folded())
        if self._board_width:
            self.post_message(self.DemandChanged())

    def show_next_view(self) -> ViewName:
        """Show the next one of these views, and return it."""
        self.show_view(VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)])
        return self.view

    @property
    def usual_columns(self) -> Sequence[ColumnName]:
        """The columns of its view unless the user chooses, the most important first."""
        return PROCESS_COLUMNS if self._view.name == "processes" else default_columns()

    def show_columns(self, wanted: Sequence[ColumnName] | None) -> Sequence[ColumnName]:
        """Show these columns, the most important first, and return those for which there is room; None: the default."""
        self._wanted = wanted
        self._refresh_rows()
        self.post_message(self.DemandChanged())
        return self.columns

    def sort_at_start(self, name: object) -> None:
        """Sort by the column of this name, if there is one: what the user has set."""
        self.sort_key = next((key for key in SORTED_BY if key == name), self.sort_key)
        self._refresh_rows()

    def sort_by_next(self) -> SortKey:
        """Sort by the next column, and return it; by a figure that is read on demand only while it is shown."""
        self._sort_by(next_sort_key(self.sort_key, self.columns))
        return self.sort_key

    def filter_by(self, words: str) -> None:
        """Show only rows with these words; an empty string shows all."""
        self.filter_words = words
        self._refresh_rows()

    def mark_selected(self) -> None:
        """Mark the processes of the row under the cursor, or unmark them, and go to the next row."""
        if (row := self.selected) and row.process_keys:
            self.marks.toggle(row)
            self.post_message(self.Marked())
            self.action_move(1)

    def clear_marks(self) -> None:
        """Unmark all processes."""
        self.marks.clear()
        self.post_message(self.Marked())
        self._repaint()

    def action_open(self) -> None:
        """Unfold the run under the cursor, or open the process."""
        row = self.selected
        if row is None:
            return
        if row.fold == "folded" and not row.is_incomplete:
            self.action_unfold()
        elif (process := row.process_row) is not None:
            self.post_message(self.Opened(process))
        elif row.ancestor is not None:
            self.notify(f"Process {row.ancestor.pid} holds no GPU memory.", markup=False)
        else:
            self.notify(f"GPU {row.cells['GPU'].text}: {row.cells['COMMAND'].text}", markup=False)

    def action_unfold(self) -> None:
        """Show the processes of the run under the cursor."""
        if (row := self.selected) and row.fold == "folded":
            self._view.unfold(row)
            self._moved = True
            self._refresh_rows()
            self.post_message(self.Folded())

    def action_fold(self) -> None:
        """Hide the processes of the run under the cursor; from one of them, go to its run."""
        if (row := self.selected) is None:
            return
        if row.fold == "unfolded":
            self._view.fold(row)
            self._refresh_rows()
            self.post_message(self.Folded())
        elif row.group is not None and row.row is not None:
            above = (at for at in range(self.cursor_row, -1, -1) if self._rows[at].key == row.group.key)
            self.move_cursor(row=next(above, self.cursor_row))

    def watch_scroll_y(self, before: float, now: float) -> None:
        """Ask for the figures of the rows that have come into sight."""
        super().watch_scroll_y(before, now)
        if any(map(is_figure, self.columns)):
            self.post_message(self.DemandChanged())

    def _refresh_rows(self) -> None:
        followed, view = self.selected, self._view
        gap = column_gap(self._board_width)
        width = self._board_width - self.scrollbar_size_vertical - MARGIN
        self._rows = view.rows(words=self.filter_words, by=self.sort_key)
        columns = columns_for(
            width,
            gap,
            widths=view.widths(self._rows),
            groups=view.has_groups,
            wanted=self._wanted or self.usual_columns,
        )
        if self._painter.lay_out(columns, gap):
            self._painted.clear()
        sorted_by = SORTED_BY[self.sort_key]
        if is_figure(sorted_by) and sorted_by not in self.columns and self._board_width:
            self.sort_key = "STATUS"
            self._rows = view.rows(words=self.filter_words, by=self.sort_key)
        if followed is not None and self._moved:
            self.cursor_row = position_of(followed, self._rows, self.cursor_row)
        self.cursor_row = max(0, min(self.cursor_row, len(self._rows) - 1))
        self._fit_size()
        self._repaint()

    def _fit_size(self) -> None:
        self.virtual_size = Size(self._painter.full_width, len(self._rows) + self.HEADER_LINES)

    def _keep_drawn(self, visible: Sequence[TableRow]) -> None:
        self._painter.keep({row.key for row in visible})

    def _strip_at(self, y: int) -> Strip:
        if self._painter.width != self.size.width:  # it may be painted before the resize event
            self._forget_drawn()
            self._painter.width = self.size.width
        if y < self.HEADER_LINES:
            return self._painter.header(self.titles)
        at = y - self.HEADER_LINES + self.scroll_offset.y
        if at >= len(self._rows):
            return self._painter.blank()
        row = self._rows[at]
        return self._painter.row(row, self.marks.of(row), at_cursor=at == self.cursor_row)

    def _line_styles(self) -> LineStyles:
        return LineStyles(
            plain=self.rich_style,
            cursor=self.get_component_rich_style("processes--cursor"),
            header=self.get_component_rich_style("processes--header"),
            dark=self.app.current_theme.dark,
        )

    def _title(self, column: Column) -> str:
        sorted_by = SORTED_BY[self.sort_key] == column.name
        title = column.name.removesuffix(" GiB").removesuffix(" %") + "↓" if sorted_by else column.name
        return f"{title:>{column.width}}" if column.right else f"{title:<{column.width}}"

    def _sort_by(self, key: SortKey) -> None:
        self.sort_key = key
        self._refresh_rows()
        self.post_message(self.DemandChanged())

    def _sort_at(self, x: int) -> None:
        name = self._painter.column_at(x)
        for key in [key for key, sorted_by in SORTED_BY.items() if sorted_by == name]:
            self._sort_by(key)

    def _forget_drawn(self) -> None:
        super()._forget_drawn()
        self._painter.clear()
