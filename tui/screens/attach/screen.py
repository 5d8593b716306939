"""The attach screen: from a running process to its job, with evidence for each setting, and on to its budget."""

from collections.abc import MutableMapping
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import VramtopError
from vramtop.estimator.estimation import estimate
from vramtop.monitor.attach import Attachment, SavedAnswers
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.board import Board, RunRow, Watchlist
from vramtop.monitor.snapshot import ProcessKey, WatchedJob

from ...background import AttachFunction, EstimateFunction, JobEstimates, RunReader
from ...job import RunEdits
from ...job.form import JobForm
from ...widgets import KeysLine, StaticLines, is_better_estimate
from ..step import LiveStepScreen
from .followed_run import FollowedRun, find_run, is_only_in_recording, known_job, with_start_times
from .keys import ATTACH_KEYS, ATTACH_LAYOUT
from .pid_chooser import PidChooser
from .rank_table import RankTable
from .rank_view import RankView
from .run_summary import run_tabs


class AttachScreen(Screen[None]):
    """Asks for a process, reads its job, and follows its run; keys lead to the other runs.

    Args:
        watchlist: compares the run with its budget as soon as the job is complete.
        attach: reads a running process; called off the UI thread.
        estimate: a quick estimate, likewise.
        estimate_changed: not corrected, for the many jobs that may explain a divergence; None: ``estimate``.
        refine: a better and slower one, likewise; None: there is none.
        answers: the file of settings that the user fills in.
        attached: what was read of processes before: an ended process can no longer be read.
        board: the latest board, until ``show_board`` brings the next.
        pid: the process; None: the user is asked.
        start_time: start of that process, if known: pids are reused.
    """

    TITLE, AUTO_FOCUS = "Attach", ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = ATTACH_KEYS
    DEFAULT_CSS = ATTACH_LAYOUT

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        attach: AttachFunction = read_run,
        estimate: EstimateFunction = estimate,
        estimate_changed: EstimateFunction | None = None,
        refine: EstimateFunction | None = None,
        answers: SavedAnswers | None = None,
        attached: MutableMapping[ProcessKey, Attachment] | None = None,
        board: Board | None = None,
        pid: int | None = None,
        start_time: float | None = None,
    ) -> None:
        super().__init__()
        self._watchlist, self._board = watchlist, board
        self._estimate_changed = estimate_changed or estimate
        self._pid: int | None = None
        """The process that was read last; None: the user is choosing one."""
        self._keys: tuple[ProcessKey, ...] = () if pid is None else ((pid, start_time),)
        """Processes of the run that is shown."""
        self._attachment: Attachment | None = None
        self._budget: Budget | None = None
        self._edited_field = "model.id"
        answers, known = answers or SavedAnswers(), {} if attached is None else attached
        self._reader = RunReader(
            attach, answers, known, self.call_later, on_read=self._show_attachment, on_error=self._show_unread
        )
        self._edits = RunEdits(
            self,
            self._reader,
            answers,
            on_change=self._estimate_edited,
            on_error=self._show_estimate_error,
            on_problem=partial(self.notify, severity="warning", markup=False),
        )
        self._step = LiveStepScreen(self)
        self._estimates = JobEstimates(
            estimate,
            refine,
            self.call_later,
            on_budget=self._follow_with_budget,
            on_error=self._show_estimate_error,
            on_not_refined=self._step.show_not_refined,
        )

    def compose(self) -> ComposeResult:
        """The choice of a process, or the run."""
        yield StaticLines(id="title")
        yield PidChooser(id="choose")
        yield FollowedRun(self._watchlist.history, self._estimate_changed, self._watchlist.is_running, id="attached")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the process, or ask for one."""
        if self._keys:
            self._open_run(self._keys)
        else:
            self.action_choose()

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._cancel()

    def show_board(self, board: Board) -> None:
        """Show the run as it is on this board."""
        self._board = board
        with self.app.batch_update():
            if not self._keys:
                self.query_one(PidChooser).show_board(board)
            self._show_run()

    @on(PidChooser.Chosen)
    def pid_chosen(self, event: PidChooser.Chosen) -> None:
        """Read the chosen process."""
        self._open_run(((event.pid, None),))

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again once the typing pauses; with another model, the run is read again before."""
        if self._attachment is None:  # the form of a run that is no longer shown
            return
        self._edited_field = event.key
        self._estimates.cancel()
        if self._edits.edited(event.key, on_gpu=self._on_gpu):
            self._show_problem(f"The run is being read again with {self.query_one(JobForm).state.model}.", mark="…")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable keys that would do nothing."""
        if action in ("zoom", "run", "dismiss_run") and isinstance(self.focused, Input):
            return False  # they are typed into the field
        match action:
            case "run":
                return len(self._runs) > (self._shown_run is not None)
            case "dismiss_run":
                return self._shown_run is not None
            case "other_pane" | "forget":
                return self._attachment is not None and self._pid is not None
            case "step" | "zoom":
                return self._pid is not None
        return True

    def action_zoom(self, by: int) -> None:
        """Show a longer time (1) or a shorter one (-1)."""
        self.query_one(RankView).zoom(by)

    def action_run(self, by: int) -> None:
        """Show the next run (1) or the previous one (-1)."""
        runs, run = self._runs, self._shown_run
        if runs:
            self._open_run(runs[(runs.index(run) + by if run in runs else 0) % len(runs)].pids)

    def action_dismiss_run(self) -> None:
        """Follow this run no longer, whether it has ended or not."""
        run = self._shown_run
        if run is None:
            return
        self._watchlist.dismiss_runs(run.pids)
        self._reader.forget(run.pids)
        self._board = self._watchlist.rebuild_board()
        self.notify(f"{run.job.label} is no longer followed.", markup=False)
        if self._runs:
            self._open_run(self._runs[0].pids)
        else:
            self.app.pop_screen()

    def action_other_pane(self) -> None:
        """Move the focus to the settings, or back to the run."""
        settings = self.query_one("#settings")
        in_settings = self.focused is not None and settings in self.focused.ancestors
        self._focus_on(None if in_settings else self.query_one(JobForm))

    def action_forget(self) -> None:
        """Forget the settings that the user filled in for this command line, and read the process again."""
        attachment = self._attachment
        if attachment is not None:
            self._edits.forget()
            self._watchlist.dismiss_runs(self._keys)
            self.notify("What you filled in for this command line is forgotten.")
            self._read(attachment.pid, attachment.start_time, recall=False)

    def action_step(self) -> None:
        """Open the step screen on the job."""
        row = self.query_one(FollowedRun).selected
        budget = self._budget or (row.budget if row else None)
        if budget is None:
            self.notify("There is no budget for this process yet, so there is no step to show.", severity="warning")
        else:
            self._step.open(budget, self._estimates, gpu_bytes=row.gpu.total_bytes if row else None)

    def action_choose(self, failure: str = "") -> None:
        """Ask for another process; ``failure`` says why the last one could not be read."""
        self._cancel()
        self._pid, self._keys, self._attachment = None, (), None
        chooser = self.query_one(PidChooser)
        self._show_run()
        if self._board:
            chooser.show_board(self._board)
        chooser.show_failure(failure)
        chooser.query_one(Input).focus()
        self.refresh_bindings()

    @property
    def shown_process(self) -> ProcessKey | None:
        """The process under the cursor of the table; before the run is on a GPU, its first."""
        row = self.query_one(FollowedRun).selected
        return (row.process.key if row else self._keys[0]) if self._keys else None

    @property
    def _runs(self) -> tuple[RunRow, ...]:
        return self._board.runs if self._board else ()

    @property
    def _on_gpu(self) -> set[int] | None:
        return {row.process.pid for row in self._board.processes} or None if self._board else None

    @property
    def _shown_run(self) -> RunRow | None:
        return find_run(self._board, self._keys)

    def _open_run(self, keys: tuple[ProcessKey, ...]) -> None:
        """Show this run, and read the first of its processes."""
        self._keys, self._attachment, self._budget = keys, None, None
        self.query_one(FollowedRun).remove_form()
        self._show_problem(None)
        self._show_run()
        self._read(*self._keys[0])

    def _read(self, pid: int, start_time: float | None, *, recall: bool = True) -> None:
        self._pid = pid
        self._cancel()
        if is_only_in_recording(self._board, pid):
            is_known = self._shown_run is not None  # the recording says what it runs
            sentence = f"Process {pid} is in the recording that is played, not on this machine."
            self.call_later(lambda: self._show_unread("" if is_known else sentence) if self._pid == pid else None)
            return
        self._reader.read(pid, start_time, on_gpu=self._on_gpu, recall=recall)

    async def _show_attachment(self, attachment: Attachment) -> None:
        """Show the job of a process that was read, and estimate it."""
        keys = self._reader.remember(attachment)
        known = known_job(self._watchlist, keys)
        try:
            job = known or attachment.reading.job()
        except VramtopError as error:
            self._show_unreadable(error.message)
            return
        self._keys, self._attachment, reading = keys, attachment, attachment.reading
        self._budget = self._shown_run.budget if known and self._shown_run else None
        missing = () if known else reading.missing
        form = JobForm(job, origins={**reading.evidence(), **reading.refused}, missing=missing)
        await self.query_one(FollowedRun).replace_form(form)
        self._edits.start_run(form, attachment)
        self.remove_class("-unreadable")
        self._show_run()
        self._focus_on(form if missing else None)
        self._estimate_job()

    async def _show_unread(self, sentence: str) -> None:
        """Show what was read of the run earlier; if that is nothing, say why it cannot be read now."""
        attachment = self._reader.remembered(self._keys)
        if attachment is None:
            self._show_unreadable(sentence)
        else:
            await self._show_attachment(attachment)

    def _show_unreadable(self, sentence: str) -> None:
        """Show the run without its settings, or ask for another process if there is nothing to show."""
        if not self.query_one(FollowedRun).rows:
            self.action_choose(sentence)
            return
        self.add_class("-unreadable")
        self._show_problem(sentence)
        self._focus_on(None)

    def _cancel(self) -> None:
        self._edits.cancel()
        self._reader.cancel()
        self._estimates.cancel()

    def _estimate_edited(self, attachment: Attachment) -> None:
        """Show the run with the user's edits, and estimate its job."""
        self._attachment = attachment
        self._show_run()
        self._estimate_job()

    def _estimate_job(self) -> None:
        attachment = self._attachment
        if attachment is None:  # the form of a run that is no longer shown
            return
        form = self.query_one(JobForm)
        if job := form.job:
            options = {"environ": attachment.estimate_environ, "python": attachment.worker_python}
            self._estimates.estimate(job, **options)
            self._estimates.refine(job, **options)
        else:
            self._show_problem(form.problem)

    def _follow_with_budget(self, budget: Budget) -> None:
        """Compare the run with this budget from now on, unless a better one of the same job is known."""
        if self._budget is not None and not is_better_estimate(budget, self._budget):
            budget = self._budget
        self._budget = budget
        self.query_one(JobForm).clear_errors()
        self._show_problem(None)
        self._edits.save()
        self._step.update(budget, self._estimates)
        self._watchlist.set_budget(budget)
        self._watchlist.add_run(WatchedJob(job=budget.job, pids=self._keys))
        self._board = self._watchlist.rebuild_board() or self._board
        self._show_run()

    def _show_estimate_error(self, sentence: str) -> None:
        self.query_one(JobForm).show_error(self._edited_field, sentence)
        self._show_problem(sentence)

    def _show_problem(self, sentence: str | None, *, mark: str = "✗") -> None:
        note = " Until then, the last settings apply." if self._budget and sentence else ""
        self.query_one(FollowedRun).show_problem(f"{mark} {sentence}{note}" if sentence else None)

    def _focus_on(self, form: JobForm | None) -> None:
        """Move the focus to the form, or to the run; narrow terminals show only one of them."""
        self.set_class(form is not None, "-settings")
        (form.query("Input, Choice").first() if form else self.query_one(RankTable)).focus()
        self.refresh_bindings()

    @on(Resize)
    def _show_run(self) -> None:
        """Draw the names of the runs, and the run that is shown or the choice of a process."""
        self._keys = with_start_times(self._board, self._keys)
        self.query_one(PidChooser).display = not self._keys
        self.query_one(FollowedRun).display = bool(self._keys)
        self.query_one("#title", StaticLines).show(run_tabs(self._runs, self._keys, self.size.width - 2))
        if self._keys:
            self.query_one(FollowedRun).show(self._board, self._keys, self._attachment, self._budget)
