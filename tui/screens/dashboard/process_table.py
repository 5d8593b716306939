"""Table of the runs and processes on all GPUs, the choice of its columns, and what can be done with processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on
from textual.app import SystemCommand
from textual.containers import Vertical
from textual.content import Content
from textual.events import ScreenResume
from textual.message import Message
from textual.screen import ModalScreen, Screen

from vramtop.monitor.storage.settings.schema import COLUMNS as COLUMNS_SETTING, VIEW

from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import MUTED
from ...keys import bind, shown_key
from ...widgets.row_table import (
    FOLD_SIGNS,
    MARGIN,
    ROW_BINDINGS,
    Column,
    ContentLines,
    RowTable,
    StaticLines,
    column_gap,
)
from .process_columns import (
    COLUMNS,
    PROCESS_COLUMNS,
    ColumnName,
    ProcessColumn,
    all_columns,
    columns_for,
    columns_named,
    default_columns,
    figure_demand,
    is_figure,
    moved,
)
from .process_rows import SORTED_BY, SortKey, TableRow, next_sort_key, position_of
from .signals import Terminations
from .table_view import VIEWS, TableView, ViewName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.host.inspect.ancestry import Ancestor, AncestryReader
    from vramtop.monitor.snapshot.demand import Demand
    from vramtop.monitor.snapshot.snapshot import ProcessKey

    from ...draw.labels import CellText
    from ..base import BoardApp

PROCESS_KEYS = (
    bind("processes.view", "view", "View"),
    bind("processes.mark", "mark", "Mark", show=False),
    bind("processes.columns", "columns", "Columns", show=False),
    bind("processes.sort", "sort", "Sort"),
    bind("processes.user", "filter_by_user", "User", show=False),
    bind("processes.signal", "terminate", "Kill"),
    bind("processes.signal", "explain_refusal", help_text=""),
    bind("processes.leave_alone", "leave_alone", "Leave", show=False),
    bind("app.back", "unmark", "Unmark", show=False),
)
"""Keys that act on the rows of the process table; other keys of the dashboard follow."""
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


# The processes that the user has marked, to signal them together.


Marking = Literal["none", "some", "all"]
"""Whether the processes of a row are marked."""


class Marks:
    """The marked processes; one that has left the GPUs is no longer marked."""

    def __init__(self) -> None:
        self._rows: dict[ProcessKey, ProcessRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ProcessRow]:
        """Yield each process as it was read last, in the order in which they were marked."""
        return iter(self._rows.values())

    def toggle(self, row: TableRow) -> None:
        """Mark the processes of a row; unmark them if all are marked."""
        if self.of(row) == "all":
            self._rows = {key: each for key, each in self._rows.items() if key not in row.process_keys}
        else:
            self._rows.update(_present(row.rows))

    def clear(self) -> None:
        """Unmark all processes."""
        self._rows.clear()

    def show_board(self, board: Board) -> bool:
        """Take the processes from this board, and return True if fewer are marked now."""
        if not self._rows:
            return False
        before, present = len(self._rows), _present(board.processes)
        self._rows = {key: present[key] for key in self._rows if key in present}
        return len(self._rows) < before

    def of(self, row: TableRow) -> Marking:
        """Return whether the processes of a row are marked."""
        if not self._rows or not (keys := row.process_keys):
            return "none"
        count = sum(key in self._rows for key in keys)
        return "none" if not count else "all" if count == len(keys) else "some"

    def sentence(self, *, can_signal: bool) -> str:
        """Return how many processes are marked, and what can be done with them; empty for none.

        Args:
            can_signal: processes can be signalled from here.
        """
        if not self._rows:
            return ""
        count = "1 process" if len(self) == 1 else f"{len(self)} processes"
        signal = f": {shown_key('processes.signal')} signals them together" if can_signal else ""
        return f"* {count} marked{signal}; {shown_key('app.back')} unmarks all"


def _present(rows: Iterable[ProcessRow]) -> dict[ProcessKey, ProcessRow]:
    return {row.process.key: row for row in rows if row.ended_at is None}


_MARK_SIGNS: dict[Marking, str] = {"none": " ", "some": "~", "all": "*"}


class ProcessTable(RowTable[TableRow], can_focus=True):
    """The process table: of hundreds of rows it draws only the visible ones that have changed."""

    GAP_AROUND = True
    DEFAULT_CSS = """
    ProcessTable { background: $surface; }
    ProcessTable:focus { background-tint: $foreground 5%; }
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
        self.marks = Marks()
        self._view = TableView()
        self._board_width = 0
        """Width for which the columns were chosen."""
        self._wanted: Sequence[ColumnName] | None = None
        """The columns that the user wants, the most important first; None: the default."""
        self._ancestry: AncestryReader | None = None
        self._ancestry_task: LatestOnlyTask[Mapping[int, Ancestor]] = LatestOnlyTask(
            "process tree", self.call_later, self._show_ancestors
        )

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
        self.lay_out()
        self.post_message(self.DemandChanged())
        return self.columns

    def sort_at_start(self, name: object) -> None:
        """Sort by the column of this name, if there is one: what the user has set."""
        self.sort_key = next((key for key in SORTED_BY if key == name), self.sort_key)
        self.lay_out()

    def sort_by_next(self) -> SortKey:
        """Sort by the next column, and return it; by a figure that is read on demand only while it is shown."""
        self._sort_by(next_sort_key(self.sort_key, self.columns))
        return self.sort_key

    def sort_by_title(self, column: Column | None) -> None:
        """Sort by a column whose title was clicked; the GPUs of many hosts are in the order of these."""
        wanted = None if column is None else "GPU" if column.name == "HOST" else column.name
        for key, name in SORTED_BY.items():
            if name == wanted:
                self._sort_by(key)

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
        self.lay_out()

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

    def watch_scroll_y(self, before: float, now: float) -> None:
        """Ask for the figures of the rows that have come into sight."""
        super().watch_scroll_y(before, now)
        if any(map(is_figure, self.columns)):
            self.post_message(self.DemandChanged())

    def lay_out(self) -> None:
        """Make the rows and choose the columns again."""
        view, gap = self._view, column_gap(self._board_width)
        rows = view.rows(words=self.filter_words, by=self.sort_key)
        wanted, hosts = self._wanted or self.usual_columns, view.host_width
        columns = columns_for(
            self._board_width - self.scrollbar_size_vertical - MARGIN - (hosts and hosts + gap),
            gap,
            widths=view.widths(rows),
            groups=view.has_groups,
            wanted=[name for name in wanted if not is_figure(name)] if hosts else wanted,
            empty=() if self._wanted else view.empty_columns,
        )
        sorted_by = SORTED_BY[self.sort_key]
        if is_figure(sorted_by) and all(column.name != sorted_by for column in columns) and self._board_width:
            self.sort_key = "STATUS"
            rows = view.rows(words=self.filter_words, by=self.sort_key)
        self.show_rows(rows, [Column(name="HOST", width=hosts), *columns] if hosts else columns, gap)

    def key_of(self, row: TableRow) -> Hashable:
        """Return the key of a row."""
        return row.key

    def cells_of(self, row: TableRow) -> Sequence[CellText]:
        """Return the cells of a row."""
        return [row.cell(column) if isinstance(column, ProcessColumn) else row.host for column in self._columns]

    def signs_of(self, row: TableRow) -> tuple[str, bool]:
        """Return the signs of its mark and of its fold."""
        marking = self.marks.of(row)
        return _MARK_SIGNS[marking] + FOLD_SIGNS[row.fold], marking != "none"

    def title_of(self, column: Column) -> str:
        """Return its name; the column by which the rows are sorted has an arrow in place of its unit."""
        sorted_by = SORTED_BY[self.sort_key] == column.name
        return column.name.removesuffix(" GiB").removesuffix(" %") + "↓" if sorted_by else column.name

    def _position_of(self, followed: TableRow) -> int:
        return position_of(followed, self._rows, self.cursor_row)

    def _sort_by(self, key: SortKey) -> None:
        self.sort_key = key
        self.lay_out()
        self.post_message(self.DemandChanged())

    def _read_ancestors(self) -> None:
        """Read who has started the processes, if the view shows them, off the UI thread."""
        if (pids := self._view.ancestors_to_read()) is None:
            return
        if self._ancestry is None:
            from vramtop.monitor.host.inspect.ancestry import AncestryReader

            self._ancestry = AncestryReader()
        reader = self._ancestry
        self._ancestry_task.submit(lambda: reader.read(*pids))

    def _show_ancestors(self, ancestors: Mapping[int, Ancestor]) -> None:
        if ancestors != self._view.ancestors:
            self._view.ancestors = ancestors
            self.lay_out()


# Base of screens with the process table: view, sort, columns, marks, signals, and leaving a run alone.


class ProcessTableScreen(Screen[None]):
    """A screen with the process table, and a line ``#note`` above it."""

    app: BoardApp

    def __init__(self) -> None:
        super().__init__()
        self._terminations = Terminations(self)

    @property
    def table(self) -> ProcessTable:
        """The process table."""
        return self.query_one(ProcessTable)

    @property
    def selected_process(self) -> ProcessRow | None:
        """The process under the cursor of the table; of a run, its rank that diverges most or holds the most."""
        selected = self.table.selected
        return selected.process_row if selected else None

    def offers(self, action: str) -> bool:
        """Return whether a key does something now; if no process can be terminated, k says why."""
        match action:
            case "unmark":
                return bool(self.table.marks)
            case "terminate":
                return self.app.termination_refusal is None
            case "explain_refusal":
                return self.app.termination_refusal is not None
        return True

    def process_commands(self) -> Iterable[SystemCommand]:
        """Return the commands of the command palette that act on processes."""
        yield SystemCommand("Sort", "Sort the processes by the next column", self.action_sort)
        yield SystemCommand("Columns", "Choose the columns of the process table", self.action_columns)
        yield SystemCommand("View", "Switch the view: runs, process tree, all processes", self.action_view)
        if self.app.termination_refusal is None:
            yield SystemCommand("Kill", "Signal the marked processes, or those under the cursor", self.action_terminate)

    def show_table_note(self) -> None:
        """Say so if the filter leaves no row, and how many processes are marked."""
        line, table = self.query_one("#note", StaticLines), self.table
        note = table.marks.sentence(can_signal=self.app.termination_refusal is None)
        if not note and table.filter_words.split() and not table.row_count:
            note = f"no process matches {table.filter_words!r}; {shown_key('app.back')} shows all"
        line.show_if_any([Content.styled(note, MUTED)] if note else [])

    def action_sort(self) -> None:
        """Sort the processes by the next column."""
        self.table.sort_by_next()

    def action_columns(self) -> None:
        """Choose the columns of the table."""
        chosen = columns_named(self.app.settings.get(COLUMNS_SETTING)) or self.table.usual_columns
        self.app.push_screen(ColumnDialog(chosen, self.table.show_columns), self._keep_columns)

    def _keep_columns(self, choice: Sequence[ColumnName] | None) -> None:
        if choice is not None:
            self.app.save_setting(COLUMNS_SETTING, tuple(choice))

    @on(ProcessTable.DemandChanged)
    @on(ScreenResume)
    def _update_demand(self) -> None:
        self.app.update_demand()

    def action_view(self) -> None:
        """Show the table's next view: runs, tree, processes."""
        self.app.save_setting(VIEW, self.table.show_next_view())

    def action_mark(self) -> None:
        """Mark the processes under the cursor, or unmark them."""
        self.table.mark_selected()

    def action_unmark(self) -> None:
        """Unmark all processes."""
        self.table.clear_marks()

    @on(ProcessTable.Marked)
    def _show_marks(self) -> None:
        """Say how many processes are marked, and what can be done with them."""
        self.show_table_note()
        self.refresh_bindings()

    def action_terminate(self) -> None:
        """Ask which signal to send to the marked processes, or to those under the cursor."""
        selected, board = self.table.selected, self.app.board
        rows = list(self.table.marks) or list(selected.rows if selected else ())
        present = [row for row in rows if row.ended_at is None]
        if self.app.termination_refusal:
            self.action_explain_refusal()
        elif board is None or not rows:
            self.notify("There is no process under the cursor to signal.", severity="warning")
        elif not present:
            ended = f"Process {rows[0].process.pid} has" if len(rows) == 1 else "These processes have"
            self.notify(f"{ended} already ended.", severity="warning")
        else:
            self._terminations.ask(present, board)

    def action_leave_alone(self) -> None:
        """Leave the run of the process under the cursor alone, or attach to it again."""
        row, attach = self.selected_process, self.app.attach
        if attach is None:
            self.notify("You cannot attach to or detach from the runs of a recording.", severity="warning")
        elif row is None or row.ended_at is not None:
            self.notify("There is no running process under the cursor.", severity="warning")
        else:
            self.notify(attach.toggle(row), markup=False)
            self.app.rebuild_board()

    def action_explain_refusal(self) -> None:
        """Say why no process can be terminated."""
        if self.app.termination_refusal:
            self.notify(self.app.termination_refusal, severity="warning", markup=False)


# The dialog in which the columns of the process table are chosen; the table shows each change at once.


COLUMN_KEYS = [
    bind("columns.keep", "keep", "Keep"),
    bind("processes.columns", "keep", help_text=""),
    bind("app.back", "cancel", "Cancel"),
    bind("columns.switch", "switch", "On/off"),
    bind("columns.more_important", "shift(-1)", "More important"),
    bind("columns.less_important", "shift(1)", "Less important"),
    bind("columns.default", "default", "Default"),
    bind("list.up", "cursor(-1)"),
    bind("list.down", "cursor(1)"),
]


_NAME_WIDTH = 9


class ColumnDialog(ModalScreen[tuple[ColumnName, ...] | None]):
    """Lists all columns, the chosen ones first and by importance; returns the choice, or None if it was cancelled.

    Args:
        choice: the columns that are chosen now, the most important first.
        show: shows a choice in the table, and returns the columns for which there was room.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*COLUMN_KEYS]
    DEFAULT_CSS = """
    ColumnDialog { align: center top; }
    ColumnDialog > Vertical {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    ColumnDialog ContentLines { width: 1fr; }
    """

    def __init__(
        self, choice: Sequence[ColumnName], show: Callable[[Sequence[ColumnName]], Collection[ColumnName]]
    ) -> None:
        super().__init__()
        self._before = tuple(choice)
        self._order = all_columns(choice)
        self._chosen = set(choice)
        self._show = show
        self._selected = self._order[0]
        self._with_room: Collection[ColumnName] = ()
        """The columns that the table shows."""

    @property
    def choice(self) -> tuple[ColumnName, ...]:
        """The columns that are chosen now, the most important first."""
        return tuple(name for name in self._order if name in self._chosen)

    def compose(self) -> ComposeResult:
        """The columns, and the keys."""
        with Vertical() as box:
            box.border_title = "Columns of the table"
            yield ContentLines(id="columns")
            yield StaticLines(id="keys")

    def on_mount(self) -> None:
        """Draw the columns."""
        if not self.query("#keys"):  # the app is being closed
            return
        self.query_one(ContentLines).styles.height = len(COLUMNS)
        more, less = shown_key("columns.more_important"), shown_key("columns.less_important")
        keys = (
            f"{shown_key('columns.switch')} on/off · {more} {less} importance · "
            f"{shown_key('columns.default')} default · "
            f"{shown_key('columns.keep')} keeps · {shown_key('app.back')} cancels"
        )
        self.query_one("#keys", StaticLines).show(Content.styled(keys, MUTED))
        self._show_choice()

    def action_cursor(self, by: int) -> None:
        """Go to the next column, or to the previous one."""
        at = self._order.index(self._selected) + by
        self._selected = self._order[max(0, min(len(self._order) - 1, at))]
        self._draw()

    def action_switch(self) -> None:
        """Show the column, or do not; one column stays."""
        self._chosen ^= {self._selected}
        self._chosen = self._chosen or {self._selected}
        self._show_choice()

    def action_shift(self, by: int) -> None:
        """Make the column more or less important."""
        self._order = moved(self._order, self._selected, by)
        self._show_choice()

    def action_default(self) -> None:
        """Choose what is chosen without a setting."""
        self._order, self._chosen = all_columns(default_columns()), set(default_columns())
        self._show_choice()

    def action_keep(self) -> None:
        """Keep the choice."""
        self.dismiss(self.choice)

    def action_cancel(self) -> None:
        """Show again what was shown before."""
        self._show(self._before)
        self.dismiss(None)

    def _show_choice(self) -> None:
        """Show the choice in the table, and here."""
        self._with_room = self._show(self.choice)
        self._draw()

    def _draw(self) -> None:
        """Draw the columns with their places."""
        columns = {column.name: column for column in COLUMNS}
        self.query_one(ContentLines).show_lines([self._line(columns[name]) for name in self._order])

    def _line(self, column: ProcessColumn) -> Content:
        is_chosen, at_cursor = column.name in self._chosen, column.name == self._selected
        place = f"{self.choice.index(column.name) + 1:>2}" if is_chosen else "  "
        note = "" if not is_chosen or column.name in self._with_room or column.of_groups else "(no room now) "
        line = Content.assemble(
            f"{'▸' if at_cursor else ' '} {place} [{'x' if is_chosen else ' '}] ",
            (f"{column.name:<{_NAME_WIDTH}}", "bold" if is_chosen else ""),
            (note, "$text-warning"),
            (column.about, "" if at_cursor else MUTED),
        )
        return line.stylize("reverse") if at_cursor else line
