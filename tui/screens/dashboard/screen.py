"""The dashboard screen: every GPU beside its budget, the pending jobs, and all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.containers import Container
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.geometry import Offset, Size
from textual.widgets import Input

from vramtop.estimator.common.errors import NOT_REHEARSED
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.storage.settings.schema import VIEW

from ...draw.gpu_bars import legend_line
from ...draw.labels import MUTED, WORST_FIRST, badge, severity_rank, tag
from ...draw.palette import VERDICTS
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.content_lines import StaticLines
from ...widgets.keys_line import KeysLine
from ..base import FilterField, is_view_only
from ..registry import SCREENS
from .gpu_panel import GpuPanel
from .gpu_rows import GpuRows, gpu_name_width, gpu_row_titles, names_jobs, shows_hardware, stale_seconds
from .header_text import header_line, host_line, needed_height, notices, summary_line
from .layout import DashboardLayout, PanelShape, framed_panels, plan_layout
from .process_table import PROCESS_KEYS, ProcessTable, ProcessTableScreen
from .table_view import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.board import Board, GpuRow, PendingRow
    from vramtop.monitor.snapshot.demand import Demand
    from vramtop.monitor.snapshot.gpu_details import DetailLevel
    from vramtop.monitor.snapshot.snapshot import GpuKey

    from ..base import BoardApp, BoardFeed


DASHBOARD_KEYS: list[BindingType] = [
    *(bind(f"dashboard.{each.name}", f"app.open_screen('{each.name}')", each.label) for each in SCREENS),
    bind("list.filter", "filter", "Filter", help_text="filter the processes: pid, user, command, job, status, gpu3"),
    *PROCESS_KEYS,
    bind("dashboard.record", "app.record"),
    bind("dashboard.dismiss", "dismiss_selected"),
    bind("app.back", "show_all", "Show all"),
]
_HEAD_LINES = 3
"""Header, summary and footer."""
_MIN_DETAILS_WIDTH = 100
"""Cells of a panel that has room for more than utilisation, power and temperature."""


class DashboardScreen(ProcessTableScreen):
    """The first screen."""

    app: BoardApp
    AUTO_FOCUS = "ProcessTable"
    BINDINGS: ClassVar[list[BindingType]] = DASHBOARD_KEYS

    def __init__(self) -> None:
        super().__init__()
        self._panels: list[GpuPanel] = []
        self._selected: tuple[GpuKey, int] | None = None
        """The GPU or MIG device that the user selected, and its position; None: the one with the worst status."""
        self._detailed: dict[GpuKey, DetailLevel] = {}
        """GPUs of which details are shown."""
        self._drawn: tuple[Board, Size] | None = None
        """The board that was drawn last, and the size of the screen then."""
        self._head: tuple[Board | None, BoardFeed] | None = None
        """Board and feed that the lines at the top show."""
        self._head_height = 0
        """Lines of head, filter and footer."""
        self._refusal: str | None = ""
        """The refusal that the footer was drawn for; empty before the first board."""

    def compose(self) -> ComposeResult:
        """The machine, the GPUs, the pending jobs, the processes."""
        yield StaticLines(id="header")
        yield StaticLines(id="host")
        yield StaticLines(id="notices")
        yield StaticLines(id="summary")
        yield Container(id="panels")
        yield StaticLines(id="titles")
        yield GpuRows(id="rows")
        yield GpuPanel(id="open")
        yield StaticLines(id="pending")
        yield FilterField("filter: pid, user, command, job, status, gpu3")
        yield StaticLines(id="note")
        yield ProcessTable(id="processes")
        yield StaticLines(id="legend")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw the board, if there is one already."""
        wanted = self.app.settings.get(VIEW)
        self.set_up_table(next((view for view in VIEWS if view == wanted), VIEWS[0]))
        if self.app.board:
            self.show_board(self.app.board)
        else:
            self._show_head(None, self.app.feed)

    @property
    def selected_gpu(self) -> GpuKey | None:
        """The GPU under the cursor of the rows; otherwise that of the table's row, or the first one."""
        rows, selected = self.query_one(GpuRows), self.table.selected
        if rows.has_focus and rows.selected is not None:
            return rows.selected.reading.key
        if selected is not None:
            return selected.gpu.key
        shown = self.app.board.displayed_gpus if self.app.board else ()
        return shown[0].reading.key if shown else None

    @property
    def demand(self) -> Demand:
        """The figures that it shows beyond memory."""
        return replace(self.table.demand, gpus=self._detailed, host=self._shows_host)

    @property
    def _shows_host(self) -> bool:
        return self._area.height >= needed_height(self.app.board)

    @property
    def _area(self) -> Size:
        """The size of the screen, also before the first layout."""
        return self.size or self.app.size

    def show_board(self, board: Board) -> None:
        """Draw this board."""
        self._drawn = board, self._area
        width, feed = self._area.width, self.app.feed
        with self.app.batch_update():
            self.table.show_board(board, width=width)
            layout = plan_layout(
                width=width,
                height=self._area.height - self._show_head(board, feed),
                gpus=framed_panels(board.displayed_gpus),
                processes=self.table.needed_rows,
                pending=len(board.pending),
                budgets=any(gpu.expected_bytes is not None for gpu in board.gpus),
                hosts=board.sums is not None,
            )
            self._show_gpus(board, layout, width, feed)
            now, asks = board.snapshot.time, not is_view_only(self)
            pending = pending_lines(board.pending, width - 2, layout.pending_height, now, asks=asks)
            self.query_one("#pending", StaticLines).show_if_any(pending)
            self.show_table_note()
            legend = self.query_one("#legend", StaticLines)
            legend.show_if_any([legend_line(width - 2)] if layout.legend else [])
            if self._refusal != self.app.termination_refusal:
                self._refusal = self.app.termination_refusal
                self.refresh_bindings()

    def show_feed(self) -> None:
        """Draw the age of the readings; called once a second, even if none arrive."""
        board, feed, height = self.app.board, self.app.feed, self._head_height
        if self._head is not None and self._head[0] is board and self._head[1] == feed:
            return
        if (feed.age_seconds is None and self._show_head(board, feed) == height) or board is None:
            return
        self.show_board(board)

    @on(Resize)
    @on(ScreenResume)
    def _draw_if_outdated(self) -> None:
        if self._drawn is None or self._drawn[0] is not self.app.board or self._drawn[1] != self.size:
            self._draw()

    @on(ProcessTable.Folded)
    def _draw(self) -> None:
        if self.app.board and self.app.is_running and self.is_mounted and self.size.width:
            self.show_board(self.app.board)

    @on(GpuRows.Selected)
    def _select_gpu(self, event: GpuRows.Selected) -> None:
        if self.app.board:
            self._selected = self.app.board.displayed_gpus[event.position].reading.key, event.position
        self._draw()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.table.filter_by(event.value)
        self.show_table_note()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        if not self.table.filter_words:
            self.query_one("#filter").display = False
            self.refresh_bindings()
        self.table.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Offer only keys that do something; if no process can be terminated, k says why."""
        if action == "show_all":
            return bool(self.query_one("#filter").display)
        return self.offers(action)

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterField).open()
        self.call_after_refresh(self._draw)

    def action_filter_by_user(self) -> None:
        """Show only the processes of the user under the cursor; again: all."""
        row, field = self.selected_process, self.query_one(FilterField)
        words = f"user:{row.process.user}" if row is not None and row.process.user else ""
        if not words:
            self.notify("There is no process of a known user under the cursor.", severity="warning")
        elif field.value == words:
            self.action_show_all()
        else:
            field.value, field.display = words, True
            self.refresh_bindings()
            self.call_after_refresh(self._draw)

    def action_show_all(self) -> None:
        """Remove the filter."""
        self.query_one(FilterField).close(self.table)
        self.call_after_refresh(self._draw)

    def action_dismiss_selected(self) -> None:
        """Dismiss the ended run under the cursor; otherwise unpin a pending job."""
        row, board, app = self.selected_process, self.app.board, self.app
        if row is not None and row.ended_at is not None and board is not None:
            run = board.run_of(row.process.key)
            app.watchlist.dismiss_runs(run.pids if run else (row.process.key,))
            app.rebuild_board()
            return
        jobs = app.watchlist.pending()
        if jobs:
            place = Offset(1, self.query_one("#pending").region.bottom)

            def unpin(job: Job) -> None:
                app.watchlist.remove_pending(job)
                self.notify(f"{job.label} is no longer pending.", markup=False)

            app.choose(jobs, [job.label for job in jobs], unpin, place)
        else:
            self.notify("No job is pinned here; jobs of a recording cannot be unpinned.", severity="warning")

    def commands(self) -> Iterable[SystemCommand]:
        """Return the commands of the command palette for this screen."""
        yield SystemCommand("Dismiss", "An ended run, or a pending job", self.action_dismiss_selected)
        yield SystemCommand("Filter", "Show only some of the processes", self.action_filter)
        yield from self.process_commands()

    def redraw(self) -> None:
        """Draw everything again, because the theme has changed."""
        self.table.redraw()
        self._draw()

    def _show_head(self, board: Board | None, feed: BoardFeed) -> int:
        """Draw the lines at the top; return the lines that they, the filter and the footer take."""
        self._head = board, feed
        width = self._area.width - 2
        self.query_one("#header", StaticLines).show(header_line(board, feed, width))
        host = board.snapshot.host if board and self._shows_host else None
        self.query_one("#host", StaticLines).show_if_any([host_line(host, width)] if host else [])
        warnings = notices(board, feed, width)
        self.query_one("#notices", StaticLines).show_if_any(warnings)
        self.query_one("#summary", StaticLines).show_if_any([summary_line(board, width)] if board else [])
        self._head_height = _HEAD_LINES + (host is not None) + len(warnings) + bool(self.query_one("#filter").display)
        return self._head_height

    def _show_gpus(self, board: Board, layout: DashboardLayout, width: int, feed: BoardFeed) -> None:
        """Show the GPUs of the board as panels, or as rows and one panel."""
        gpus, history = board.displayed_gpus, self.app.watchlist.history
        panels, rows = self.query_one("#panels", Container), self.query_one(GpuRows)
        titles, opened = self.query_one("#titles", StaticLines), self.query_one("#open", GpuPanel)
        panels.display = bool(layout.panels)
        rows.display = layout.panels is None
        titles.display = layout.titles
        opened.display = layout.open_panel
        stale = [stale_seconds(gpu, board, feed) for gpu in gpus]
        self._detailed = {}
        if layout.panels is not None:
            while len(self._panels) > len(gpus):
                self._panels.pop().remove()
            while len(self._panels) < len(gpus):
                self._panels.append(GpuPanel())
                panels.mount(self._panels[-1])
            panels.styles.height = layout.gpu_height
            self._demand_details(gpus, layout.panels[0].width if layout.panels else 0)
            for panel, place, gpu, age in zip(self._panels, layout.panels, gpus, stale, strict=True):
                panel.stand_at(place)
                panel.show_gpu(gpu, board, place, age, history)
            return
        selected = self._selected_position(gpus)
        row_width = width - (layout.gpu_height < len(gpus))  # the scrollbar
        name_width = gpu_name_width(gpus)
        rows.styles.height = layout.gpu_height
        jobs = names_jobs(gpus)
        titles.show(gpu_row_titles(row_width, names=name_width, jobs=jobs, hosts=board.sums is not None))
        rows.show_gpus(gpus, width=row_width, name_width=name_width, selected=selected, stale=stale)
        if shows_hardware(row_width - name_width, jobs=jobs):
            self._demand_details(gpus, row_width)
        if layout.open_panel:
            shape = PanelShape(width=width, graph_height=layout.graph_height)
            gpu = gpus[selected]
            opened.styles.height = shape.height
            if not self._detailed:
                self._demand_details([gpu], shape.width)
            opened.show_gpu(gpu, board, shape, stale[selected], history)

    def _demand_details(self, gpus: Sequence[GpuRow], panel_width: int) -> None:
        """Ask for fans and clock reasons of the GPUs in panels that have room for them."""
        if panel_width >= _MIN_DETAILS_WIDTH:
            self._detailed = {gpu.reading.whole_gpu_key: "compact" for gpu in gpus}

    def _selected_position(self, shown: Sequence[GpuRow]) -> int:
        """Return the position of the selected GPU; if it is gone, of the GPU in its place."""
        if self._selected is not None:
            key, before = self._selected
            position = next((at for at, gpu in enumerate(shown) if gpu.reading.key == key), before)
            return min(position, len(shown) - 1)
        worst = [min((severity_rank(row) for row in gpu.rows), default=len(WORST_FIRST)) for gpu in shown]
        return worst.index(min(worst)) if worst else 0


def pending_lines(rows: Sequence[PendingRow], width: int, height: int, now: float, *, asks: bool) -> list[Content]:
    """Return one line for each pending job, at most ``height``; the last one counts those that do not fit in.

    Args:
        rows: the jobs.
        width: in cells.
        height: most lines.
        now: Unix seconds.
        asks: see ``pending_line``.
    """
    shown = list(rows) if len(rows) <= height else list(rows[: max(0, height - 1)])
    lines = [pending_line(row, width, now, asks=asks) for row in shown]
    if len(rows) > len(shown):
        lines.append(Content.styled(f"pending … and {len(rows) - len(shown)} more", MUTED))
    return lines[:height]


_HIGHLIGHT_SECONDS = 60.0
"""A job is highlighted this long after it started or ceased to fit."""


def pending_line(row: PendingRow, width: int, now: float, *, asks: bool = True) -> Content:
    """Return a pending job with its verdict and the reason; one whose verdict has just changed is highlighted.

    Args:
        row: the job.
        width: in cells.
        now: Unix seconds.
        asks: the fit check can be opened, which asks whether to rehearse a program.
    """
    if row.fit is None:
        verdict, reason = badge(VERDICTS["unknown"], "unknown"), row.sentence or "no budget"
        if asks and reason.startswith(NOT_REHEARSED):
            keys = shown_key("dashboard.fit_check"), shown_key("fit.rehearse")
            reason = f"{NOT_REHEARSED}press {keys[0]}, then {keys[1]} to run it"
    else:
        verdict, reason = badge(VERDICTS[row.fit.verdict], row.fit.verdict), row.sentence or ""
        if row.budget is not None and row.budget.learned is not None:
            reason = f"{reason} · corrected, was {format_gib(row.budget.learned.uncorrected.device_bytes)}"
    is_new = row.fits_changed_at is not None and now - row.fits_changed_at < _HIGHLIGHT_SECONDS
    head = tag("NOW") if is_new else Content.styled("pending", MUTED)
    name = Content.styled(printable(row.job.label), "bold")
    return Content.assemble(head, " ", name, " ", verdict, " ", printable(reason)).truncate(width, ellipsis=True)
