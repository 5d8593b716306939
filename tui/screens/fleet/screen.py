"""The dashboard over many hosts: sums over the fleet, and a table of hosts or of runs, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual import on
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input

from ...draw import MUTED
from ...keys import shown_key
from ...widgets import KeysLine, StaticLines
from .details import FleetDetailScreen
from .fleet_table import VIEWS, FleetTable
from .header_text import FleetFeed, fleet_line, header_line, notice_lines
from .keys import FLEET_KEYS

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from vramtop.monitor.fleet import Fleet

    from .job_fit import BudgetsFor


@runtime_checkable
class ShowsFleet(Protocol):
    """A screen that receives every new fleet, and the latest one when it becomes active again."""

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Show this fleet; called on the UI thread, about once an interval. None: there is none yet."""


@runtime_checkable
class EstimatesJobs(Protocol):
    """An app that reads a fleet and makes budgets of jobs."""

    fleet: Fleet | None
    """The latest fleet."""
    budgets_for: BudgetsFor
    """Makes the budgets of a job."""

    @property
    def feed(self) -> FleetFeed:
        """State of the readings."""


class FleetScreen(Screen[None]):
    """The first screen of the dashboard over many hosts."""

    TITLE = "Fleet"
    AUTO_FOCUS = "FleetTable"
    BINDINGS: ClassVar[list[BindingType]] = FLEET_KEYS
    DEFAULT_CSS = """
    FleetScreen #header { height: 1; padding: 0 1; background: $panel; }
    FleetScreen #sums { height: 1; padding: 0 1; }
    FleetScreen #notices { padding: 0 1; }
    FleetScreen #filter { height: 1; display: none; }
    FleetScreen #note { height: 1; padding: 0 1; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._fleet: Fleet | None = None
        self._feed: FleetFeed | None = None
        self._job_text = ""
        """The job of the fit screen as it was left."""

    def compose(self) -> ComposeResult:
        """The sums, the filter, the table."""
        yield StaticLines(id="header")
        yield StaticLines(id="sums")
        yield StaticLines(id="notices")
        yield Input(id="filter", placeholder="filter: host, job, user, status; user:ann", compact=True)
        yield StaticLines(id="note")
        yield FleetTable(id="table")
        yield KeysLine()

    @property
    def table(self) -> FleetTable:
        """The table."""
        return self.query_one(FleetTable)

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Show this fleet."""
        is_new = fleet is not self._fleet
        self._fleet, self._feed = fleet, feed
        with self.app.batch_update():
            self._show_head()
            if fleet is not None and is_new:
                self.table.show_fleet(fleet)
                self._show_note()

    def on_resize(self, _: Resize) -> None:
        """Draw the head for the new width."""
        self._show_head()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer Esc while there is something to show again."""
        del parameters
        return action != "show_all" or bool(self.query_one("#filter").display)

    def action_view(self) -> None:
        """Show hosts or runs."""
        table = self.table
        table.show_view(VIEWS[(VIEWS.index(table.view) + 1) % len(VIEWS)])
        self._show_note()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.table.sort_by_next()

    def action_filter(self) -> None:
        """Type words by which rows are filtered."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()
        self.refresh_bindings()

    def action_fit(self) -> None:
        """Open the fit screen on the job that was typed there last."""
        self.open_fit(self._job_text)

    def open_fit(self, text: str) -> None:
        """Open the fit screen on a job."""
        from .job_fit import FleetFitScreen  # with the estimator, so not at start-up

        app = self.app
        if isinstance(app, EstimatesJobs) and app.screen is self:
            app.push_screen(FleetFitScreen(app.budgets_for, app.fleet, app.feed, text=text), self._keep_job)

    def _keep_job(self, text: str | None) -> None:
        self._job_text = text or ""

    def action_show_all(self) -> None:
        """Show all rows again."""
        field = self.query_one("#filter", Input)
        field.value, field.display = "", False
        self.table.focus()
        self.refresh_bindings()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.table.filter_by(event.value)
        self._show_note()

    @on(Input.Submitted, "#filter")
    def _keep_filter(self) -> None:
        self.table.focus()

    @on(FleetTable.Opened)
    def _open(self, event: FleetTable.Opened) -> None:
        if self._fleet is None or self._feed is None or self.app.screen is not self:
            return
        row = event.row
        self.app.push_screen(FleetDetailScreen(self._fleet, host=row.host, run=row.of_run))

    def _show_head(self) -> None:
        if self._feed is None or not self.is_mounted or not self.size.width:
            return
        width = self.size.width - 2
        self.query_one("#header", StaticLines).show(header_line(self._fleet, self._feed, width))
        self.query_one("#sums", StaticLines).show(fleet_line(self._fleet, width))
        lines = notice_lines(self._fleet, self._feed)
        notices = self.query_one("#notices", StaticLines)
        notices.display = bool(lines)
        notices.show(Content("\n").join(lines), layout=True)

    def _show_note(self) -> None:
        """Say so if the filter leaves no row, or there is no run."""
        table, line = self.table, self.query_one("#note", StaticLines)
        note = ""
        if not table.rows and table.filter_words.split():
            note = f"nothing matches {table.filter_words!r}; {shown_key('app.back')} shows all"
        elif not table.rows and table.view == "runs":
            note = f"no run is known on these hosts; {shown_key('fleet.view')} shows the hosts"
        line.display = bool(note)
        line.show(Content.styled(note, MUTED))
