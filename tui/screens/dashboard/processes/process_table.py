"""Table of the runs and processes on all GPUs; it redraws only changed lines, and its cursor follows a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import SystemCommand
from textual.content import Content
from textual.events import ScreenResume
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.strip import Strip

from vramtop.monitor.storage.settings.schema import COLUMNS, VIEW

from ....draw.labels import MUTED, CellText
from ....keys import bind, shown_key
from ....widgets.row_table import FOLD_SIGNS, ROW_BINDINGS, RowTable, StaticLines, column_gap, table_cell
from ..signals import Terminations
from .columns import (
    PROCESS_COLUMNS,
    Column,
    ColumnDialog,
    ColumnName,
    columns_for,
    columns_named,
    default_columns,
    figure_demand,
    is_figure,
)
from .process_rows import (
    SORTED_BY,
    VIEWS,
    Fold,
    RowKey,
    SortKey,
    TableRow,
    TableView,
    ViewName,
    next_sort_key,
    position_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from textual.binding import BindingType

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.host.inspect.ancestry import Ancestor, AncestryReader
    from vramtop.monitor.snapshot.snapshot import Demand, ProcessKey

    from ....background.latest_only_task import LatestOnlyTask
    from ...base import BoardApp

# Keys of the process table, and of the screens that show it.


PROCESS_KEYS = (
    bind("processes.view", "view", "View"),
    bind("processes.mark", "mark", "Mark", show=False),
    bind("processes.columns", "columns", "Columns", show=False),
    bind("processes.sort", "sort", "Sort"),
    bind("processes.signal", "terminate", "Kill"),
    bind("processes.signal", "explain_refusal", help_text=""),
    bind("processes.leave_alone", "leave_alone", "Leave", show=False),
    bind("app.back", "unmark", "Unmark", show=False),
)
"""Keys that act on the rows of the process table; other keys of the dashboard follow."""
TABLE_KEYS = (
    bind(
        "list.open", "open", "Open",
        help_text="unfold the run under the cursor; of an unfolded run or a process: settings, ranks, memory over "
        "time, why it diverges",
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


# Draws the lines of the process table as strips; a line that has not changed is the same object as before.


MARGIN = 2
"""Cells on the left, for the sign of a mark and that of a fold."""
_MARK_SIGNS: dict[Marking, str] = {"none": " ", "some": "~", "all": "*"}
_MARKED = Style(bold=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStyles:
    """Styles of the table's lines."""

    plain: Style
    cursor: Style
    header: Style
    dark: bool
    """The ground is dark."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A row as it was drawn last."""

    row: TableRow
    cells: tuple[CellText, ...]
    state: tuple[Fold | None, Marking, bool]
    strip: Strip


class RowPainter:
    """Draws the titles and the visible rows, and keeps what it has drawn.

    Args:
        styles: returns the styles now; asked again after ``clear``.
    """

    def __init__(self, styles: Callable[[], LineStyles]) -> None:
        self._read_styles = styles
        self._styles: LineStyles | None = None
        self.columns: Sequence[Column] = ()
        self.gap = 2
        """Cells between two columns."""
        self.width = 0
        """Width of the drawn lines."""
        self._lines: dict[RowKey, _Line] = {}
        self._header: tuple[Sequence[str], Strip] | None = None

    def clear(self) -> None:
        """Draw everything again, in new styles."""
        self._styles = self._header = None
        self._lines.clear()

    def lay_out(self, columns: Sequence[Column], gap: int) -> bool:
        """Take these columns from now on, and return True if they differ from the last ones."""
        if (columns, gap) == (self.columns, self.gap):
            return False
        self.columns, self.gap = columns, gap
        self.clear()
        return True

    @property
    def full_width(self) -> int:
        """Cells of all columns."""
        return MARGIN + sum(column.width + self.gap for column in self.columns)

    def column_at(self, x: int) -> ColumnName | None:
        """Return the column in a cell of a line; None: there is none."""
        end = MARGIN
        for column in self.columns:
            end += column.width + self.gap
            if x < end:
                return column.name
        return None

    def header(self, titles: Sequence[str]) -> Strip:
        """Return the line of titles."""
        if self._header is None or self._header[0] != titles:
            text = " " * MARGIN + "".join(self._spaced(title) for title in titles)
            self._header = titles, self._full_line([Segment(text, self._style.header)])
        return self._header[1]

    def row(self, row: TableRow, marking: Marking, *, at_cursor: bool) -> Strip:
        """Return the line of a row."""
        state = row.fold, marking, at_cursor
        line = self._lines.get(row.key)
        if line is not None and line.row is row and line.state == state:
            return line.strip
        cells = tuple(row.cell(column) for column in self.columns)
        same = line is not None and line.state == state and line.cells == cells
        strip = line.strip if line and same else self._draw(row, cells, marking, at_cursor=at_cursor)
        self._lines[row.key] = _Line(row, cells, state, strip)
        return strip

    def blank(self) -> Strip:
        """Return a line without a row."""
        return Strip.blank(self.width, self._style.plain)

    def keep(self, keys: Collection[RowKey]) -> None:
        """Forget the rows that are no longer visible."""
        self._lines = {key: line for key, line in self._lines.items() if key in keys}

    @property
    def _style(self) -> LineStyles:
        if self._styles is None:
            self._styles = self._read_styles()
        return self._styles

    def _draw(self, row: TableRow, cells: Sequence[CellText], marking: Marking, *, at_cursor: bool) -> Strip:
        styles = self._style
        ground = styles.cursor if at_cursor else styles.plain
        line: list[tuple[str, str]] = [(_MARK_SIGNS[marking] + FOLD_SIGNS[row.fold], "")]
        for column, text in zip(self.columns, cells, strict=True):
            cell = table_cell(text, column.width, right=column.right, dark=styles.dark)
            drawn = self._spaced(set_cell_size(cell.text, column.width))
            if line[-1][1] == cell.style:
                line[-1] = (line[-1][0] + drawn, cell.style)
            else:
                line.append((drawn, cell.style))
        weight = _MARKED if marking != "none" else Style()
        return self._full_line([Segment(text, ground + Style.parse(style) + weight) for text, style in line])

    def _spaced(self, text: str) -> str:
        before = self.gap // 2
        return " " * before + text + " " * (self.gap - before)

    def _full_line(self, segments: list[Segment]) -> Strip:
        strip = Strip(segments)
        return strip.adjust_cell_length(self.width, segments[-1].style)


# Reads who has started the processes of the tree view, off the UI thread and only while that is shown.


class TreeReader:
    """Brings the ancestors of the processes into a view.

    Args:
        view: what the table shows.
        call_later: ``call_later`` of the table.
        on_changed: called on the UI thread when the tree has changed.
    """

    def __init__(self, view: TableView, call_later: Callable[..., object], on_changed: Callable[[], None]) -> None:
        self._view = view
        self._call_later = call_later
        self._on_changed = on_changed
        self._reader: AncestryReader | None = None
        self._task: LatestOnlyTask[Mapping[int, Ancestor]] | None = None

    def read(self) -> None:
        """Read the ancestors again, if the view shows them."""
        if (pids := self._view.ancestors_to_read()) is None:
            return
        if self._reader is None or self._task is None:
            from vramtop.monitor.host.inspect.ancestry import AncestryReader

            from ....background.latest_only_task import LatestOnlyTask

            self._reader = AncestryReader()
            self._task = LatestOnlyTask("process tree", self._call_later, self._show)
        reader = self._reader
        self._task.submit(lambda: reader.read(*pids))

    def _show(self, ancestors: Mapping[int, Ancestor]) -> None:
        if self._view.show_ancestors(ancestors):
            self._on_changed()


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
        line.display = bool(note)
        line.show(Content.styled(note, MUTED))

    def action_sort(self) -> None:
        """Sort the processes by the next column."""
        self.table.sort_by_next()

    def action_columns(self) -> None:
        """Choose the columns of the table."""
        chosen = columns_named(self.app.settings.get(COLUMNS)) or self.table.usual_columns
        self.app.push_screen(ColumnDialog(chosen, self.table.show_columns), self._keep_columns)

    def _keep_columns(self, choice: Sequence[ColumnName] | None) -> None:
        if choice is not None:
            self.app.save_setting(COLUMNS, tuple(choice))

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
            self.notify("There is no process under the cursor that can be signalled.", severity="warning")
        elif not present:
            ended = f"Process {rows[0].process.pid} has" if len(rows) == 1 else "These processes have"
            self.notify(f"{ended} ended already.", severity="warning")
        else:
            self._terminations.ask(present, board)

    def action_leave_alone(self) -> None:
        """Leave the run of the process under the cursor alone, or attach to it again."""
        row, attach = self.selected_process, self.app.attach
        if attach is None:
            self.notify("The runs of a recording cannot be attached to or left alone.", severity="warning")
        elif row is None or row.ended_at is not None:
            self.notify("There is no running process under the cursor.", severity="warning")
        else:
            self.notify(attach.toggle(row), markup=False)
            self.app.rebuild_board()

    def action_explain_refusal(self) -> None:
        """Say why no process can be terminated."""
        if self.app.termination_refusal:
            self.notify(self.app.termination_refusal, severity="warning", markup=False)
