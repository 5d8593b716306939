"""The table of the runs and processes on all GPUs: its views, its order, its columns and what it asks to be read."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.content import Content
from textual.events import ScreenResume
from textual.message import Message
from textual.screen import Screen

from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.host.inspect.ancestry import Ancestor, AncestryReader
from vramtop.monitor.snapshot.demand import Demand
from vramtop.monitor.storage.settings.schema import COLUMNS, SORT, VIEW

from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import MUTED, CellText
from ...keys import bind, shown_key
from ...widgets.content_lines import StaticLines
from ...widgets.row_table import FOLD_SIGNS, MARGIN, ROW_BINDINGS, Column, RowTable
from ..base import BoardApp
from .process_columns import (
    DEFAULT_COLUMNS,
    FIGURES,
    PROCESS_COLUMNS,
    ColumnName,
    ProcessColumn,
    columns_for,
    columns_named,
)
from .process_rows import SORTED_BY, SortKey, TableRow, position_of
from .table_view import VIEWS, TableView, ViewName

TABLE_KEYS = (
    bind(
        "list.open", "open", "Open",
        help_text=(
            "unfold the run; on an unfolded run or a process: show its settings, ranks, memory over "
            "time, and why it diverges"
        ),
    ),
    bind("list.unfold", "unfold", help_text="show the processes of a run, or hide them", group="Fold", show=False),
    bind("list.fold", "fold", group="Fold", show=False),
    *ROW_BINDINGS,
)  # fmt: skip
"""Keys of the table itself."""
_NARROW = 100
"""Below this width, columns are one cell apart, not two."""


class ProcessTable(RowTable[TableRow], can_focus=True):
    """The process table: of hundreds of rows it draws only the visible ones that have changed."""

    GAP_AROUND = True
    DEFAULT_CSS = """
    ProcessTable { background: $surface; }
    ProcessTable:focus { background-tint: $foreground 5%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*TABLE_KEYS]

    class Opened(RowTable.Opened):
        """The user opens a process; ``row`` is a ``ProcessRow``."""

    class Folded(Message):
        """The user has folded or unfolded a row, or changed the view: the table has more or fewer rows."""

    class DemandChanged(Message):
        """The table may now need other figures, of those that are read only on demand."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.sort_key: SortKey = "STATUS"
        self._view = TableView()
        self._board_width = 0
        """Width for which the columns were chosen."""
        self._wanted: Sequence[ColumnName] | None = None
        """The columns that the user wants, the most important first; None: the default."""
        self._ancestry: AncestryReader | None = None

        def show_ancestors(ancestors: Mapping[int, Ancestor]) -> None:
            if ancestors != self._view.ancestors:
                self._view.ancestors = ancestors
                self.lay_out()

        self._ancestry_task = LatestOnlyTask("process tree", self.call_later, show_ancestors)

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
    def columns(self) -> Sequence[ColumnName]:
        """The columns for which there is room."""
        return [column.name for column in self._columns if isinstance(column, ProcessColumn)]

    @property
    def demand(self) -> Demand:
        """The figures that its columns show."""
        return Demand(process_figures=frozenset(FIGURES[name] for name in self.columns if name in FIGURES))

    def show_board(self, board: Board, *, width: int) -> None:
        """Show the board's processes in a table of this width."""
        self._view.show_board(board)
        self._board_width = width
        self.lay_out()
        self._read_ancestors()

    def show_view(self, name: ViewName) -> None:
        """Show runs, the tree or all processes."""
        self._view.name = name
        self.lay_out()
        self._read_ancestors()
        self.post_message(self.Folded())
        if self._board_width:
            self.post_message(self.DemandChanged())

    def show_columns(self, wanted: Sequence[ColumnName] | None) -> None:
        """Show these columns, the most important first; None: the default."""
        self._wanted = wanted
        self.lay_out()
        self.post_message(self.DemandChanged())

    def sort_by_next(self) -> SortKey:
        """Sort by the next column that is shown, whose title says so, and return it."""
        keys = [key for key, name in SORTED_BY.items() if name in self.columns] or [self.sort_key]
        self._sort_by(keys[(keys.index(self.sort_key) + 1) % len(keys) if self.sort_key in keys else 0])
        return self.sort_key

    def sort_by_title(self, column: Column | None) -> None:
        """Sort by a column whose title was clicked; the GPUs of many hosts are in the order of these."""
        wanted = None if column is None else "GPU" if column.name == "HOST" else column.name
        for key, name in SORTED_BY.items():
            if name == wanted:
                self._sort_by(key)

    def action_open(self) -> None:
        """Unfold the run under the cursor, or open the process."""
        row = self.selected
        if row is None:
            return
        if row.fold == "folded" and not any(each.has_guessed_budget for each in row.rows):  # opening asks for settings
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
            self._view.unfolded.add(row.key)
            self._moved = True
            self.lay_out()
            self.post_message(self.Folded())

    def action_fold(self) -> None:
        """Hide the processes of the run under the cursor; from one of them, go to its run."""
        if (row := self.selected) is None:
            return
        if row.fold == "unfolded":
            self._view.unfolded.discard(row.key)
            self.lay_out()
            self.post_message(self.Folded())
        elif row.group is not None and row.row is not None:
            above = (at for at in range(self.cursor_row, -1, -1) if self._rows[at].key == row.group.key)
            self.move_cursor(row=next(above, self.cursor_row))

    def lay_out(self) -> None:
        """Make the rows and choose the columns again."""
        view, gap = self._view, 1 if self._board_width < _NARROW else 2
        rows = view.rows(words=self.filter_words, by=self.sort_key)
        usual = PROCESS_COLUMNS if view.name == "processes" else DEFAULT_COLUMNS
        wanted, hosts = self._wanted or usual, view.host_width
        columns = columns_for(
            self._board_width - self.scrollbar_size_vertical - MARGIN - (hosts and hosts + gap),
            gap,
            widths=view.widths(rows),
            groups=view.has_groups,
            wanted=[name for name in wanted if name not in FIGURES] if hosts else wanted,
            empty=view.empty_columns if tuple(wanted) == usual else (),
        )
        sorted_by = SORTED_BY[self.sort_key]
        if sorted_by in FIGURES and all(column.name != sorted_by for column in columns) and self._board_width:
            self.sort_key = "STATUS"
            rows = view.rows(words=self.filter_words, by=self.sort_key)
        self.show_rows(rows, [Column(name="HOST", width=hosts), *columns] if hosts else columns, gap)

    def key_of(self, row: TableRow) -> Hashable:
        """Return the key of a row."""
        return row.key

    def cells_of(self, row: TableRow) -> Sequence[CellText]:
        """Return the cells of a row."""
        return [row.cell(column) if isinstance(column, ProcessColumn) else row.host for column in self._columns]

    def signs_of(self, row: TableRow) -> str:
        """Return the sign of its fold."""
        return f" {FOLD_SIGNS[row.fold]}"

    def title_of(self, column: Column) -> str:
        """Return its name; the column by which the rows are sorted has an arrow in place of its unit."""
        sorted_by = SORTED_BY[self.sort_key] == column.name
        return column.name.removesuffix(" GiB").removesuffix(" %") + "↓" if sorted_by else column.name

    def _position_of(self, followed: TableRow) -> int:
        return position_of(followed, self._rows, self.cursor_row)

    def _sort_by(self, key: SortKey) -> None:
        self.sort_key = key
        self.lay_out()

    def _read_ancestors(self) -> None:
        """Read who has started the processes, if the view shows them, off the UI thread."""
        if (pids := self._view.ancestors_to_read()) is None:
            return
        reader = self._ancestry = self._ancestry or AncestryReader()
        self._ancestry_task.submit(lambda: reader.read(*pids))


PROCESS_KEYS = (
    bind("processes.view", "view", "View"),
    bind("processes.sort", "sort", "Sort"),
    bind("processes.user", "filter_by_user"),
    bind("processes.signal", "terminate", "Kill"),
    bind("processes.signal", "explain_refusal", help_text=""),
)
"""Keys that act on the rows of the process table; other keys of the dashboard follow."""


class ProcessTableScreen(Screen[None]):
    """A screen with the process table, and a line ``#note`` above it."""

    app: BoardApp

    @property
    def table(self) -> ProcessTable:
        """The process table."""
        return self.query_one(ProcessTable)

    @property
    def selected_process(self) -> ProcessRow | None:
        """The process under the cursor of the table; of a run, its rank that diverges most or holds the most."""
        selected = self.table.selected
        return selected.process_row if selected else None

    def set_up_table(self, view: ViewName) -> None:
        """Show this view of the table, with the columns and the order that the user has chosen."""
        table, wanted = self.table, self.app.settings.get(SORT)
        table.sort_key = next((key for key in SORTED_BY if key == wanted), table.sort_key)
        table.show_view(view)
        table.show_columns(columns_named(self.app.settings.get(COLUMNS)))

    def offers(self, action: str) -> bool:
        """Return whether a key does something now; if no process can be terminated, k says why."""
        match action:
            case "terminate":
                return self.app.termination_refusal is None
            case "explain_refusal":
                return self.app.termination_refusal is not None
        return True

    def process_commands(self) -> Iterable[SystemCommand]:
        """Return the commands of the command palette that act on processes."""
        yield SystemCommand("Sort", "Sort the processes by the next column", self.action_sort)
        yield SystemCommand("View", "Switch the view: runs, process tree, all processes", self.action_view)
        if self.app.termination_refusal is None:
            yield SystemCommand("Kill", "Signal the processes under the cursor", self.action_terminate)

    def show_table_note(self) -> None:
        """Say so if the filter leaves no row."""
        line, table = self.query_one("#note", StaticLines), self.table
        note = ""
        if table.filter_words.split() and not table.row_count:
            note = f"no process matches {table.filter_words!r}; {shown_key('app.back')} shows all"
        line.show_if_any([Content.styled(note, MUTED)] if note else [])

    def action_sort(self) -> None:
        """Sort the processes by the next column."""
        self.table.sort_by_next()

    @on(ProcessTable.DemandChanged)
    @on(ScreenResume)
    def _update_demand(self) -> None:
        self.app.update_demand()

    def action_view(self) -> None:
        """Show the table's next view: runs, tree, processes."""
        self.table.show_view(VIEWS[(VIEWS.index(self.table.view) + 1) % len(VIEWS)])
        self.app.save_setting(VIEW, self.table.view)

    def action_terminate(self) -> None:
        """Ask which signal to send to the processes under the cursor."""
        selected, board = self.table.selected, self.app.board
        rows = selected.rows if selected else ()
        present = [row for row in rows if row.ended_at is None]
        if self.app.termination_refusal:
            self.action_explain_refusal()
        elif board is None or not rows:
            self.notify("There is no process under the cursor to signal.", severity="warning")
        elif not present:
            ended = f"Process {rows[0].process.pid} has" if len(rows) == 1 else "These processes have"
            self.notify(f"{ended} already ended.", severity="warning")
        else:
            from .signal_dialog import ask_which_signal  # not at start-up

            ask_which_signal(self, present, board)

    def action_explain_refusal(self) -> None:
        """Say why no process can be terminated."""
        if self.app.termination_refusal:
            self.notify(self.app.termination_refusal, severity="warning", markup=False)
