"""The preflight screen: a row for each check of one job as they finish, and a summary; in one line of other screens."""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Offset
from textual.screen import Screen

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.preflight.check import Check, CheckContext, CheckResult

from ...background.latest_only_task import LatestOnlyTask
from ...background.preflight_run import PreflightProgress, PreflightRequest, read_context, run_preflight
from ...draw.labels import MUTED, shorten
from ...draw.palette import CHECK_RUNNING, CHECK_UNKNOWN, CHECKS, Mark
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...reports.preflight_text import MARK_WIDTH, count_outcomes, outcome_lines, outcome_mark, summary_line
from ...widgets.content_lines import StaticLines, TitleLine
from ...widgets.keys_line import KeysLine
from ..base import BoardApp, DrawnScreen

PREFLIGHT_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("fit.preflight", "dismiss", help_text=""),
    bind("preflight.again", "run_again", "Again"),
]
_REFRESH_SECONDS = 1.0
"""Interval at which the times of running checks are redrawn."""


class PreflightScreen(DrawnScreen[None]):
    """Runs the checks when it opens and again on ``r``; leaving it cancels the checks that still run.

    Args:
        request: the job, and the machine it is to run on.
        on_done: receives the outcomes of all checks, on the UI thread.
        read: returns the facts that the checks look at; called off the UI thread.
        checks: the checks to run; all when left out.
    """

    TITLE = "Preflight"
    BINDINGS: ClassVar[list[BindingType]] = PREFLIGHT_KEYS
    DEFAULT_CSS = """
    PreflightScreen #facts { height: 1; padding: 0 1; color: $foreground 65%; text-overflow: ellipsis; }
    PreflightScreen #checks { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    PreflightScreen #summary { padding: 0 1; text-wrap: wrap; border-top: hkey $foreground 20%; }
    """

    def __init__(
        self,
        request: PreflightRequest,
        *,
        on_done: Callable[[PreflightProgress], None] = lambda _: None,
        read: Callable[[PreflightRequest], CheckContext] = read_context,
        checks: Sequence[Check] | None = None,
    ) -> None:
        super().__init__()
        self._request = request
        self._on_done = on_done
        self._read = read
        self._checks = checks
        self.progress: PreflightProgress | None = None
        """The outcomes so far."""
        self._check_task = self._new_task()

    def compose(self) -> ComposeResult:
        """The machine, the checks, and the summary."""
        yield TitleLine(id="title")
        yield StaticLines(id="facts")
        with VerticalScroll(id="checks", can_focus=True):
            yield StaticLines(id="rows")
        yield StaticLines(id="summary")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Start the checks."""
        self.query_one("#checks").focus()
        self.query_one("#title", StaticLines).show(Content(f"Preflight: {printable(self._request.job.label)}"))
        self.set_interval(_REFRESH_SECONDS, lambda: None if self.progress and self.progress.done else self.redraw())
        self.action_run_again()

    def on_unmount(self) -> None:
        """Cancel the checks that still run."""
        self._check_task.cancel()

    def show_board(self, board: Board) -> None:
        """Use this board the next time the checks run."""
        self._request = replace(self._request, board=board)

    def action_run_again(self) -> None:
        """Cancel the checks that still run, and run all checks again."""
        self._check_task.cancel()
        self._check_task = self._new_task()  # a new thread: a check that hangs does not delay the next run
        request = self._request
        self._check_task.submit_with_progress(
            lambda report: run_preflight(lambda: self._read(request), report, self._checks)
        )
        self.query_one("#checks").scroll_home(animate=False)

    def show_progress(self, progress: PreflightProgress) -> None:
        """Show the outcomes so far."""
        self.progress = progress
        self.redraw()
        if progress.done:  # the failures are at the top now
            self.query_one("#checks").scroll_home(animate=False)
            self._on_done(progress)

    def _new_task(self) -> LatestOnlyTask[PreflightProgress]:
        return LatestOnlyTask("preflight", self.call_later, self.show_progress)

    def draw(self) -> None:
        """Draw the outcomes so far."""
        progress = self.progress
        if progress is None:
            return
        width = self.size.width - 3  # a space on both sides, and the scrollbar
        rows = [] if progress.problem is not None else _check_rows(progress, width=width, now=time.monotonic())
        self.query_one("#facts", StaticLines).show(Content(_facts(progress)))
        self.query_one("#rows", StaticLines).show(Content("\n").join(rows), layout=True)
        self.query_one("#summary", StaticLines).show(_summary_row(progress), layout=True)


def open_preflight(
    opener: Screen[Any],
    job: Job | None,
    *,
    devices: tuple[DeviceCapacity, ...] = (),
    budget: Budget | None = None,
    launch: Sequence[str] | None = None,
    choice: DeviceChoice | None = None,
) -> None:
    """Open the preflight screen on a job; the ``PreflightMark`` of the opener, if it has one, then shows the outcome.

    Args:
        opener: the screen that opens it.
        job: the job; None: its settings are invalid, and a notification says so.
        devices: the chosen GPUs; used if the job is for another machine.
        budget: the best known budget of this job.
        launch: the launch line that the job was read from; None: there was none.
        choice: the GPUs that it or its script chooses; None: those of the environment.
    """
    if job is None or not (job.model.id or job.model.config or job.program):
        opener.notify("There is no job to check: choose a model and correct the marked fields.", severity="warning")
        return
    app, marks = opener.app, opener.query(PreflightMark)
    request = PreflightRequest(
        job=job,
        devices=devices if job.target.gpu else (),
        board=getattr(app, "board", None),
        budget=budget,
        launch=launch,
        choice=choice,
        python=getattr(app, "python", None),
    )

    def show_in_opener(progress: PreflightProgress) -> None:
        for mark in marks:
            mark.show_progress(progress, job)

    app.push_screen(PreflightScreen(request, on_done=show_in_opener))


def _facts(progress: PreflightProgress) -> str:
    """Return the machine and the Python that the job is to run on."""
    context = progress.context
    if context is None:
        return ""
    machine, python = context.machine, context.interpreter
    where = "on this machine"
    if machine.is_described:
        where = f"on {len(machine.devices)} × {machine.devices[0].name} elsewhere" if machine.devices else "elsewhere"
    return printable(f"{where} · {python.path} ({python.origin})")


def open_pending_preflight(app: BoardApp) -> None:
    """Check the pending job; the user chooses it if there are several."""
    pending = app.board.pending if app.board else ()

    def check(job: Job) -> None:
        open_preflight(app.screen, job, budget=next(row.budget for row in pending if row.job == job))

    if pending:
        bottom = max((widget.region.bottom for widget in app.screen.query("#pending")), default=2)
        app.choose([row.job for row in pending], [row.job.label for row in pending], check, Offset(1, bottom))
    else:
        key = shown_key("dashboard.fit_check")
        app.notify(
            (f"No job is pending; press {key} for the fit check, which can run preflight too."), severity="warning"
        )


def _check_rows(progress: PreflightProgress, *, width: int, now: float) -> list[Content]:
    """Return a row for each check: in order while some still run, failures first when all are done.

    A running check says what it waits for, and its time limit.

    Args:
        progress: the outcomes so far.
        width: cells of a line.
        now: the current ``time.monotonic``.
    """
    name_width = max((len(check.name) for check in progress.checks), default=0)
    if progress.done:
        return [line for outcome in progress.worst_first for line in _row(outcome, name_width, width)]
    rows: list[Content] = []
    for check in progress.checks:
        outcome = progress.outcomes.get(check.name)
        if outcome is not None:
            rows += _row(outcome, name_width, width)
            continue
        state = "waits for the machine's reading"
        if progress.context is not None:
            passed = max(0.0, now - progress.started_at)
            state = f"{passed:.0f} of {check.timeout_seconds:.0f} s: waits for {check.waits_for}"
        text = shorten(state, max(0, width - MARK_WIDTH - name_width - 4))
        name = f"  {check.name:<{name_width}}  "
        rows.append(Content.assemble(painted(CHECK_RUNNING, _head(CHECK_RUNNING)), name, (text, MUTED)))
    return rows


def _summary_row(progress: PreflightProgress) -> Content:
    """Return the last line: the summary, or how many checks are done."""
    if progress.problem is not None:
        return Content.assemble(painted(CHECKS["failure"], "cannot check: "), printable(progress.problem))
    if progress.done:
        outcomes = progress.worst_first
        return painted(outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"], summary_line(outcomes))
    if progress.context is None:
        return Content.styled("reading the machine", MUTED)
    so_far = count_outcomes(tuple(progress.outcomes.values()), of=("failure", "warning"))
    words = f"{len(progress.outcomes)} of {len(progress.checks)} checks done"
    return Content.styled(f"{words}; so far {so_far}" if so_far else words, MUTED)


def _row(outcome: CheckResult, name_width: int, width: int) -> list[Content]:
    mark, margin = outcome_mark(outcome), MARK_WIDTH + name_width + 4
    found, advice = outcome_lines(outcome, max(20, width - margin), printable)
    head = Content.assemble(painted(mark, _head(mark)), f"  {outcome.name:<{name_width}}  ", found[0])
    if outcome.status == "skipped":
        head = Content.assemble(painted(mark, _head(mark)), (f"  {outcome.name:<{name_width}}  {found[0]}", MUTED))
    rest = [Content.styled(" " * margin + line, MUTED if outcome.status == "skipped" else "") for line in found[1:]]
    return [head, *rest, *(Content.styled(" " * margin + line, "italic") for line in advice)]


def _head(mark: Mark) -> str:
    return f"{mark.letter} {mark.word}".ljust(MARK_WIDTH)


def mark_line(progress: "PreflightProgress | None", *, stale: bool = False) -> Content:
    """Return preflight in a few words, with the key for more: ``preflight: ✗ 2 failures, 1 warning · F12``.

    Args:
        progress: the outcomes; None: preflight has not run.
        stale: the settings have changed since.
    """
    key = shown_key("fit.preflight")
    if progress is None:
        return Content.styled(f"preflight: not run · {key}", MUTED)
    if progress.problem is not None:
        result: Content = painted(CHECK_UNKNOWN, "? cannot check")
    else:
        outcomes = progress.worst_first
        mark = outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"]
        words = (
            count_outcomes(outcomes, of=("failure", "warning"))
            or count_outcomes(outcomes, of=("pass",))
            or "nothing to check"
        )
        result = painted(mark, f"{mark.letter} {words}")
    old = " (with other settings)" if stale else ""
    return Content.assemble(("preflight: ", MUTED), result, (f"{old} · {key}", MUTED))


class PreflightMark(StaticLines):
    """Preflight in one line of a screen that has a ``preflight`` action; a click runs that action.

    Args:
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = "PreflightMark { height: 1; pointer: pointer; text-overflow: ellipsis; }"

    _progress: PreflightProgress | None = None
    _checked_job: Job | None = None

    def on_mount(self) -> None:
        """Show that preflight has not run."""
        self.show_job(None)

    def show_progress(self, progress: "PreflightProgress", job: Job) -> None:
        """Show the outcomes for this job."""
        self._progress, self._checked_job = progress, job
        self.show_job(job)

    def show_job(self, job: Job | None) -> None:
        """Mark the outcomes as stale if the screen now shows another job than the checked one."""
        self.show(mark_line(self._progress, stale=job != self._checked_job))

    async def on_click(self) -> None:
        """Open the preflight screen."""
        await self.screen.run_action("preflight")


def painted(mark: Mark, words: str) -> Content:
    """Return words in the colour of a mark, bold if it needs attention."""
    return Content.styled(words, f"bold {mark.colour}" if mark.word.isupper() else mark.colour)
