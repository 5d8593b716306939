"""Base of screens with the process table: view, sort and signals."""

from collections.abc import Iterable

from textual import on
from textual.app import SystemCommand
from textual.content import Content
from textual.events import ScreenResume
from textual.screen import Screen

from vramtop.monitor.board.board import ProcessRow
from vramtop.monitor.storage.settings.schema import COLUMNS, SORT, VIEW

from ...draw.labels import MUTED
from ...keys import bind, shown_key
from ...widgets.static_lines import StaticLines
from ..base import BoardApp
from .process_columns import columns_named
from .process_rows import SORTED_BY
from .process_table import ProcessTable
from .table_view import VIEWS, ViewName

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
