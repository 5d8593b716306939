"""The dashboard: every GPU beside its budget, the jobs that wait, and all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.geometry import Offset, Size
from textual.screen import Screen
from textual.widgets import Input

from ...draw.labels import MUTED, severity_rank, shorten
from ...draw.text_output import printable
from ...widgets.choice import ChoiceMenu
from ...widgets.keys_line import KeysLine
from ...widgets.legend import Legend, legend_line
from ...widgets.static_lines import StaticLines
from .gpu_panel import GpuPanel
from .gpu_panel_text import PanelShape, panel_height
from .gpu_row_text import gpu_name_width, gpu_row_titles
from .gpu_rows import GpuRows
from .header_text import STALE_INTERVALS, header_line, notices, summary_line
from .layout import DashboardLayout, plan_layout
from .pending_list import PendingList
from .process_table import ProcessTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual.app import ComposeResult

    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.board import Board, GpuRow
    from vramtop.monitor.snapshot.snapshot import GpuKey

    from ..base import BoardApp, FeedStatus
    from .terminate import Terminations


class DashboardScreen(Screen[None]):
    """The first screen."""

    app: BoardApp
    AUTO_FOCUS = "ProcessTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "app.fit_check", "Fit"),
        Binding("a", "app.attach", "Attach"),
        Binding("t", "step", "Step"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("k", "terminate", "Kill"),
        Binding("k", "say_no_ending", show=False),
        Binding("r", "app.record", "Rec"),
        Binding("p", "preflight", "Preflight", show=False),
        Binding("x", "take_away", "Dismiss", show=False),
        Binding("escape", "show_all", "Show all"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._headed: tuple[Board | None, FeedStatus] | None = None
        """What the lines at the top say."""
        self._panels: list[GpuPanel] = []
        self._chosen: tuple[GpuKey, int] | None = None
        """The GPU or MIG device that the user has chosen, and its position; None: the one that needs a look."""
        self._drawn: tuple[Board, Size] | None = None
        """What was drawn last, and on how much room."""
        self._taken = 0
        """Lines of the head, the filter and the footer."""
        self._endings: Terminations | None = None
        self._no_ending: str | None = ""
        """Why no process can be ended, as the keys were shown last; empty: nothing was known yet."""

    def compose(self) -> ComposeResult:
        """From the most general to the most special."""
        yield StaticLines(id="header")
        yield StaticLines(id="notices")
        yield StaticLines(id="summary")
        yield Container(id="panels")
        yield StaticLines(id="titles")
        yield GpuRows(id="rows")
        yield GpuPanel(id="open")
        yield PendingList(id="pending")
        yield Input(id="filter", placeholder="filter: pid, user, command, job, status, gpu3", compact=True)
        yield StaticLines(id="nothing")
        yield ProcessTable(id="processes")
        yield Legend(id="legend")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw what is known already."""
        if self.app.board:
            self.show_board(self.app.board)
        else:
            self._show_head(None, self.app.feed)

    @property
    def _room(self) -> Size:
        """What there is to draw on, also before the first layout."""
        return self.size or self.app.size

    @property
    def table(self) -> ProcessTable:
        """The process table."""
        return self.query_one(ProcessTable)

    def show_board(self, board: Board) -> None:
        """Show these figures."""
        self._drawn = board, self._room
        with self.app.batch_update():
            feed = self.app.feed
            plan = self._plan(board, self._room.height - self._show_head(board, feed))
            self._show_gpus(board, plan, feed)
            self.query_one(PendingList).show_pending(
                board.pending, width=self._room.width - 2, height=plan.pending_height, now=board.snapshot.time
            )
            self.table.show_board(board, width=self._room.width)
            self._say_matches()
            legend = self.query_one(Legend)
            legend.display = plan.legend
            if plan.legend:
                legend.show(legend_line(self._room.width - 2))
            if self._no_ending != self.app.no_ending:
                self._no_ending = self.app.no_ending
                self.refresh_bindings()

    def show_feed(self) -> None:
        """Say how old the figures are, once a second, also when none come in."""
        board, feed, taken = self.app.board, self.app.feed, self._taken
        if self._headed is not None and self._headed[0] is board and self._headed[1] == feed:
            return
        if (feed.age_seconds is None and self._show_head(board, feed) == taken) or board is None:
            return
        self.show_board(board)

    @on(Resize)
    @on(ScreenResume)
    def _fill_room(self) -> None:
        if self._drawn is None or self._drawn[0] is not self.app.board or self._drawn[1] != self.size:
            self._arrange_again()

    def _arrange_again(self) -> None:
        if self.app.board and self.app.is_running and self.is_mounted and self.size.width:
            self.show_board(self.app.board)

    @on(GpuRows.Chosen)
    def _choose_gpu(self, event: GpuRows.Chosen) -> None:
        if self.app.board:
            self._chosen = self.app.board.displayed_gpus[event.position].reading.key, event.position
        self._arrange_again()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.table.filter_by(event.value)
        self._say_matches()

    @on(Input.Submitted, "#filter")
    def _to_table(self) -> None:
        if not self.table.filter_words:
            self.query_one("#filter").display = False
            self.refresh_bindings()
        self.table.focus()

    @on(ProcessTable.Chosen)
    def _show_details(self, event: ProcessTable.Chosen) -> None:
        self.app.show_process(event.row)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Only a filter that is open can be dropped; where no process can be ended, its key only says why."""
        match action:
            case "show_all":
                return bool(self.query_one("#filter").display)
            case "terminate":
                return self.app.no_ending is None
            case "say_no_ending":
                return self.app.no_ending is not None
        return True

    def action_filter(self) -> None:
        """Open the filter."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()
        self.refresh_bindings()
        self.call_after_refresh(self._arrange_again)

    def action_show_all(self) -> None:
        """Drop the filter."""
        box = self.query_one("#filter", Input)
        box.value = ""
        box.display = False
        self.table.focus()
        self.refresh_bindings()
        self.call_after_refresh(self._arrange_again)

    def action_sort(self) -> None:
        """Sort the processes by the next thing."""
        self.table.sort_by_next()

    def action_step(self) -> None:
        """Draw the training step of the job under the cursor; of another one, where no job is known there."""
        board, chosen = self.app.board, self.table.chosen
        rows = [chosen.row] if chosen and chosen.row else []
        rows += board.processes if board else []
        row = next((row for row in rows if row.budget), None)
        waiting = next((row.budget for row in board.pending if row.budget), None) if board else None
        if row and row.budget:
            self.app.show_step(row.budget, row.gpu.total_bytes)
        elif waiting:
            self.app.show_step(waiting, self.app.card_bytes)
        else:
            self.notify("No job with a budget runs or waits here, so there is no step to draw.", severity="warning")

    def action_take_away(self) -> None:
        """Take away the ended run under the cursor; else a job that waits, which the user chooses of several."""
        chosen, board = self.table.chosen, self.app.board
        row = chosen.row if chosen else None
        if row is not None and row.ended_at is not None and board is not None:
            pids = next((run.pids for run in board.runs if row.process.key in run.pids), (row.process.key,))
            self.app.watchlist.dismiss_runs(pids)
            self.app.renew_board()
            return
        jobs = self.app.watchlist.pending()
        if not jobs:
            self.notify("No job was pinned here; those of a recording stay.", severity="warning")
        else:
            self._choose_job(jobs, self._unpin)

    def action_terminate(self) -> None:
        """Ask whether the process under the cursor shall end."""
        from .terminate import Terminations

        chosen, board = self.table.chosen, self.app.board
        if self.app.no_ending:
            self.action_say_no_ending()
        elif board is None or chosen is None or chosen.row is None:
            self.notify("The cursor is on no process that could be ended.", severity="warning")
        elif chosen.row.ended_at is not None:
            self.notify(f"Process {chosen.row.process.pid} has ended already.", severity="warning")
        else:
            self._endings = self._endings or Terminations(self)
            self._endings.ask(chosen.row, board)

    def action_say_no_ending(self) -> None:
        """Say why no process can be ended."""
        if self.app.no_ending:
            self.notify(self.app.no_ending, severity="warning", markup=False)

    def action_preflight(self) -> None:
        """Look whether all that a job that waits needs is there; the user chooses of several."""
        waiting = self.app.board.pending if self.app.board else ()

        def show(job: Job) -> None:
            from ..preflight.screen import open_preflight  # not at start-up: it brings all the checks

            open_preflight(self, job, budget=next(row.budget for row in waiting if row.job == job))

        if waiting:
            self._choose_job([row.job for row in waiting], show)
        else:
            self.notify("No job waits here; f opens the fit check, which has preflight too.", severity="warning")

    def commands(self) -> Iterable[SystemCommand]:
        """What the command palette offers here."""
        yield SystemCommand("Step", "Memory over one training step, by component", self.action_step)
        yield SystemCommand("Preflight", "Is all there that a job that waits needs?", self.action_preflight)
        yield SystemCommand("Sort", "Sort the processes by the next column", self.action_sort)
        yield SystemCommand("Dismiss", "An ended run, or a job that waits", self.action_take_away)
        if self.app.no_ending is None:
            yield SystemCommand("Kill", "End the process under the cursor; asks first", self.action_terminate)
        yield SystemCommand("Filter", "Show only some of the processes", self.action_filter)

    def redraw(self) -> None:
        """Draw everything again, because the theme has changed."""
        self.table.redraw()
        self._arrange_again()

    def _choose_job(self, jobs: Sequence[Job], then: Callable[[Job], None]) -> None:
        """The only job, or the one that the user chooses of several."""
        if len(jobs) == 1:
            then(jobs[0])
            return
        place = Offset(1, self.query_one(PendingList).region.bottom)
        names = [shorten(printable(job.label), self._room.width - 8) for job in jobs]
        self.app.push_screen(ChoiceMenu(names, place), lambda at: None if at is None else then(jobs[at]))

    def _unpin(self, job: Job) -> None:
        self.app.watchlist.remove_pending(job)
        self.notify(f"{job.label} waits no longer.", markup=False)

    def _say_matches(self) -> None:
        """Say why the table is empty, where that is the filter's doing."""
        line, words = self.query_one("#nothing", StaticLines), self.table.filter_words
        line.display = bool(words.split()) and not self.table.row_count
        line.show(Content.styled(f"no process matches {words!r}; Esc shows all", MUTED))

    def _show_head(self, board: Board | None, feed: FeedStatus) -> int:
        """Draw the lines at the top; returns how many lines they, the filter and the footer take."""
        self._headed = board, feed
        width = self._room.width
        self.query_one("#header", StaticLines).show(header_line(board, feed, width - 2))
        warnings = notices(board, feed, width - 2)
        box = self.query_one("#notices", StaticLines)
        box.display = bool(warnings)
        box.show(Content("\n").join(warnings), layout=True)
        summary = self.query_one("#summary", StaticLines)
        summary.display = board is not None
        if board:
            summary.show(summary_line(board, width - 2))
        self._taken = 3 + len(warnings) + bool(self.query_one("#filter").display)
        return self._taken

    def _plan(self, board: Board, height: int) -> DashboardLayout:
        return plan_layout(
            width=self._room.width,
            height=height,
            gpus=len(board.displayed_gpus),
            processes=len(board.processes) + len(board.displayed_gpus),
            pending=len(board.pending),
            budgets=any(gpu.expected_bytes is not None for gpu in board.gpus),
        )

    def _show_gpus(self, board: Board, plan: DashboardLayout, feed: FeedStatus) -> None:
        panels, rows = self.query_one("#panels", Container), self.query_one(GpuRows)
        titles, opened = self.query_one("#titles", StaticLines), self.query_one("#open", GpuPanel)
        panels.display = plan.panels and bool(board.gpus)
        rows.display = not plan.panels
        titles.display = plan.titles
        opened.display = plan.open_panel
        if plan.panels:
            self._show_panels(board, plan, feed, panels)
            return
        shown = board.displayed_gpus
        chosen = self._chosen_position(shown)
        scrolls = plan.gpu_height < len(shown)
        width = self._room.width - scrolls
        names = gpu_name_width(shown)
        rows.styles.height = plan.gpu_height
        titles.show(gpu_row_titles(width, names=names))
        rows.show_gpus(shown, width=width, names=names, chosen=chosen, stale=lambda gpu: self._stale(gpu, board, feed))
        if plan.open_panel:
            shape = PanelShape(width=self._room.width, graph_height=plan.graph_height)
            self._show_panel(opened, shown[chosen], board, shape, feed)

    def _show_panels(self, board: Board, plan: DashboardLayout, feed: FeedStatus, container: Container) -> None:
        shown = board.displayed_gpus
        while len(self._panels) > len(shown):
            self._panels.pop().remove()
        while len(self._panels) < len(shown):
            self._panels.append(GpuPanel())
            container.mount(self._panels[-1])
        container.styles.grid_size_columns = plan.columns
        container.styles.grid_rows = str(panel_height(plan.graph_height))
        container.styles.height = plan.gpu_height
        shape = PanelShape(width=self._room.width // plan.columns, graph_height=plan.graph_height)
        for panel, gpu in zip(self._panels, shown, strict=True):
            self._show_panel(panel, gpu, board, shape, feed)

    def _show_panel(self, panel: GpuPanel, gpu: GpuRow, board: Board, shape: PanelShape, feed: FeedStatus) -> None:
        history = self.app.watchlist.history.gpu(gpu.reading.key) if shape.graph_height else ()
        stale = self._stale(gpu, board, feed)
        panel.show_gpu(gpu, history, shape, now=board.snapshot.time, stale_seconds=stale)

    def _chosen_position(self, shown: Sequence[GpuRow]) -> int:
        """Of what the user has chosen, wherever that is now; where it is gone, of what has its place."""
        if self._chosen is not None:
            key, before = self._chosen
            at = next((at for at, gpu in enumerate(shown) if gpu.reading.key == key), before)
            return min(at, len(shown) - 1)
        worst = [min((severity_rank(row) for row in gpu.rows), default=99) for gpu in shown]
        return worst.index(min(worst)) if worst else 0

    def _stale(self, gpu: GpuRow, board: Board, feed: FeedStatus) -> float | None:
        reading = gpu.reading
        if not reading.read_at or (reading.used_bytes is None and not reading.mig):  # its figures are n/a, not old
            return None
        age = board.snapshot.time - reading.read_at + (feed.age_seconds or 0.0)
        return age if reading.is_stale or age > STALE_INTERVALS * feed.interval else None
