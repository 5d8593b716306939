"""The view of a followed run: its ranks, its settings, and one of its processes compared with its budget."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes import Divergence
from vramtop.estimator.job import Job
from vramtop.monitor.attach import Attachment
from vramtop.monitor.board import NOT_ON_GPU_YET, Board, MissingReason, ProcessRow, RunRow, Watchlist
from vramtop.monitor.board.divergence import Status
from vramtop.monitor.board.divergence.diagnose import diagnose
from vramtop.monitor.board.missing_reason import missing_reason
from vramtop.monitor.snapshot import HistoryKey, MemoryHistory, ProcessKey

from ...background import EstimateFunction, LatestOnlyTask
from ...draw import MUTED
from ...reports import divergence_content
from ...widgets import StaticLines
from ..base import is_view_only
from ..crash import open_crash_on
from .rank_rows import RankPlacement
from .rank_table import RankTable
from .rank_view import RankView
from .run_summary import process_header, run_header, warnings_content

if TYPE_CHECKING:
    from ..base import BoardApp

_EXPLAIN_STEP = 0.02
"""A divergence is explained again when the held memory has changed by this share of the budget."""
_Divergence = tuple[int, HistoryKey, int, bool, Status]
"""Id of the budget, process on a GPU, held memory in steps, whether torch's counters are known, and status."""


class FollowedRun(Vertical):
    """Shows one run.

    Args:
        history: memory of processes over time.
        estimate: a quick estimate, to explain divergences.
        is_running: returns True if a process of this machine still runs.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = """
    FollowedRun { height: 1fr; }
    FollowedRun #run { padding: 0 1; text-overflow: ellipsis; }
    FollowedRun #warnings { padding: 0 1; max-height: 4; overflow-y: auto; text-wrap: wrap; }
    FollowedRun #halves { height: 1fr; layout: horizontal; border-top: hkey $foreground 20%; }
    FollowedRun #settings { width: 2fr; max-width: 66; border-right: vkey $foreground 20%; }
    FollowedRun #memory { width: 3fr; }
    FollowedRun #problem { height: auto; padding: 0 1; color: $text-error; display: none; }
    FollowedRun #problem.-shown { display: block; }
    """

    def __init__(
        self,
        history: MemoryHistory,
        estimate: EstimateFunction,
        is_running: Callable[[ProcessKey], bool],
        *,
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id)
        self._history = history
        self._estimate = estimate
        self._is_running = is_running
        self._explain_task = LatestOnlyTask("explain", self.call_later, self._show_explanation)
        self._explained: _Divergence | None = None
        """The divergence that is explained, or that is being explained."""
        self._redraw: Callable[[], None] | None = None
        self._attachment: Attachment | None = None
        self.rows: tuple[ProcessRow, ...] = ()
        """The run's processes on GPUs."""

    def compose(self) -> ComposeResult:
        """The whole run at the top, one of its processes below."""
        yield StaticLines(id="run")
        yield StaticLines(id="warnings")
        yield RankTable(id="ranks")
        yield Static(id="problem", markup=False)
        with Horizontal(id="halves"):
            yield Vertical(id="settings")
            yield RankView(id="memory")

    def on_unmount(self) -> None:
        """Cancel the explanation."""
        self._explain_task.cancel()

    def show(
        self, board: Board | None, keys: Sequence[ProcessKey], attachment: Attachment | None, budget: Budget | None
    ) -> None:
        """Show a run.

        Args:
            board: the latest board.
            keys: processes of the run.
            attachment: what was read of it; None: nothing yet.
            budget: budget of its job, shown while the run holds nothing on a GPU.
        """
        self._attachment = attachment
        self.rows = run_rows(board, keys)
        now = board.snapshot.time if board else 0.0
        missing = NOT_ON_GPU_YET if self.rows else missing_reason(board, keys, self._is_running)
        header = run_header(attachment, self.rows, missing.short) if attachment else None
        if header is None and self.rows:
            header = process_header(self.rows)
        reading = Content.styled(f"… reading process {keys[0][0]}", MUTED) if keys else Content()
        self.query_one("#run", StaticLines).show(reading if header is None else header, layout=True)
        warnings = self.query_one("#warnings", StaticLines)
        warnings.display = bool(attachment and attachment.warnings)
        if attachment:
            warnings.show(warnings_content(attachment), layout=True)
        placements = self._placements(board, attachment) or dict.fromkeys(keys, RankPlacement(missing=missing.short))
        self.query_one(RankTable).show(self.rows, placements, width=self.size.width)
        self._redraw = lambda: self._draw(budget, now, missing)
        self._redraw()

    @property
    def selected(self) -> ProcessRow | None:
        """The process under the cursor, which is drawn; None: it holds nothing on a GPU."""
        return self.query_one(RankTable).selected

    def show_problem(self, sentence: str | None) -> None:
        """Say why the job is incomplete or invalid, or what is awaited; None: it is neither."""
        line = self.query_one("#problem", Static)
        line.update(sentence or "")
        line.set_class(sentence is not None, "-shown")

    async def replace_form(self, form: Widget) -> None:
        """Show the settings of the run in this form."""
        settings = self.query_one("#settings")
        await settings.remove_children()
        form.disabled = is_view_only(self)
        await settings.mount(form)

    def remove_form(self) -> None:
        """Remove the settings of the run shown before."""
        self.query_one("#settings").remove_children()

    @on(RankTable.Selected)
    @on(Resize)
    def _draw_again(self) -> None:
        if self._redraw is not None:
            self._redraw()

    @on(RankTable.Paged)
    def _scroll_rank(self, event: RankTable.Paged) -> None:
        """Scroll the process below the table, where the reason of a divergence may be out of sight."""
        pane = self.query_one(RankView)
        pane.scroll_relative(y=event.by * max(1, pane.size.height - 2), animate=False)

    @on(RankTable.RowSelected)
    def _explain_end(self) -> None:
        """Open the explanation of a rank that ended out of memory."""
        if self.selected is not None:
            open_crash_on(cast("BoardApp", self.app), self.selected)

    def _show_explanation(self, divergence: Divergence) -> None:
        self.query_one(RankView).show_explanation(divergence_content(divergence))

    def _placements(self, board: Board | None, attachment: Attachment | None) -> dict[ProcessKey, RankPlacement]:
        """Return the rank of each process; those on no GPU yet with the GPU they will take, or why they are on none."""
        if attachment is None:
            return {}
        present = {row.process.key for row in self.rows}
        if board and any((rank.pid, rank.start_time) not in present for rank in attachment.ranks):
            attachment = attachment.with_gpu_assignments([gpu.reading for gpu in board.gpus])
        placements: dict[ProcessKey, RankPlacement] = {}
        for rank in attachment.ranks:
            key = rank.pid, rank.start_time
            missing = NOT_ON_GPU_YET if key in present else missing_reason(board, (key,), self._is_running)
            gpu = "-" if rank.gpu_assignment.gpu is None else str(rank.gpu_assignment.gpu)
            placements[key] = RankPlacement(rank.rank, gpu, missing.short)
        return placements

    def _draw(self, budget: Budget | None, now: float, missing: MissingReason) -> None:
        row, view = self.selected, self.query_one(RankView)
        if row is None:
            view.show_nothing(missing.sentence, budget)
            return
        view.show(row, history=self._history.lifetime(row.key), now=now)
        self._explain(row)

    def _explain(self, row: ProcessRow) -> None:
        """Explain the process's divergence, if it has one that is not explained yet."""
        attachment, budget, comparison = self._attachment, row.budget, row.comparison
        if budget is None or comparison is None or not comparison.diverges:
            self._explained = None
            self._explain_task.cancel()
            self.query_one(RankView).show_explanation(Content())
            return
        high = comparison.peak_usage
        held = (high.size_bytes if high else comparison.observed_bytes) or 0
        steps = round(held / max(1.0, _EXPLAIN_STEP * budget.peak.device_bytes))
        divergence = (id(budget), row.key, steps, row.process.counters is not None, comparison.status)
        if divergence == self._explained:
            return
        self._explained = divergence
        assumed = [f.key for f in attachment.reading.findings if not f.written] if attachment else []
        estimate = partial(self._estimate, environ=attachment.estimate_environ if attachment else None)
        self._explain_task.submit(lambda: diagnose(budget, comparison, row.process, estimate, assumed=assumed))


def find_run(board: Board | None, keys: Sequence[ProcessKey]) -> RunRow | None:
    """Return the followed run that these processes belong to."""
    runs = board.runs if board else ()
    return next((run for run in runs if not set(keys).isdisjoint(run.pids)), None)


def known_job(watchlist: Watchlist, keys: Sequence[ProcessKey]) -> Job | None:
    """Return the job of the run that these processes belong to, unless settings of it are missing."""
    runs = (run for run in watchlist.runs() if not set(keys).isdisjoint(run.pids) and not run.missing)
    return next((run.job for run in runs), None)


def run_rows(board: Board | None, keys: Sequence[ProcessKey]) -> tuple[ProcessRow, ...]:
    """Return the processes of a run on their GPUs, including ended ones."""
    run = find_run(board, keys)
    if run is not None:
        return run.rows
    return tuple(row for row in (board.processes if board else ()) if row.process.key in keys)


def is_only_in_recording(board: Board | None, pid: int) -> bool:
    """Return True if the process is known from a recording only: a local process with its pid is another one."""
    if board is None or board.snapshot.source.is_live:
        return False
    return any(row.process.pid == pid for row in (*board.processes, *board.ended_processes))


def with_start_times(board: Board | None, keys: tuple[ProcessKey, ...]) -> tuple[ProcessKey, ...]:
    """Return the keys, with start times added for processes that are now on a GPU or in a run."""
    if board is None or all(start is not None for _, start in keys):
        return keys
    seen = [*(row.process.key for row in board.processes), *(key for run in board.runs for key in run.pids)]
    return tuple(next((other for other in seen if key[1] is None and other[0] == key[0]), key) for key in keys)
