"""The attach screen: from a running process to its job, with evidence for each setting, and on to its budget."""

from collections.abc import MutableMapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.attach.rehearse_run import find_program, with_rehearsal
from vramtop.monitor.attach.saved_answers import SavedAnswers, run_key
from vramtop.monitor.board.board import NOT_ON_GPU_YET, Board, MissingReason, ProcessRow, RunRow, missing_reason
from vramtop.monitor.board.comparison import Status
from vramtop.monitor.board.diagnosis import diagnose
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.process_stat import is_own_process
from vramtop.monitor.snapshot.snapshot import HistoryKey, ProcessKey, WatchedJob

from ...background.job_estimates import EstimateFunction, JobEstimates
from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import MUTED, join_to_width, left_and_right, warning
from ...draw.text_output import printable
from ...job.dialogs import BESIDE_RUN_REMARK, RehearseScreen
from ...job.form.fields import TUNING
from ...job.form.job_form import JobForm
from ...job.form.reading import FormReading
from ...keys import bind, shown_key
from ...widgets.budget_view import is_better_estimate
from ...widgets.content_lines import StaticLines, TitleLine
from ...widgets.keys_line import KeysLine
from ..base import BoardApp, feed_signs, is_view_only
from ..crash import open_crash_on
from ..step.screen import LiveStepScreen
from .rank_table import RankPlacement, RankTable
from .rank_view import RankView
from .run_header import process_header, run_header, run_title
from .run_reader import AnswerWriter, AttachFunction, RunReader

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.estimator.causes.divergence import Divergence
    from vramtop.estimator.trace.own_program import WhatRuns
    from vramtop.monitor.attach.rehearse_run import RunProgram


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


ATTACH_KEYS: list[BindingType] = [
    bind("app.back", "back", "Back"),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "focus_settings(True)", "Settings"),
    bind("form.other_pane", "focus_settings(False)", "Run", help_text=""),
    bind("attach.rehearse", "rehearse", "Rehearse"),
    bind("attach.forget", "forget"),
    bind("attach.zoom_in", "zoom(-1)", group="Zoom"),
    bind("attach.zoom_out", "zoom(1)", group="Zoom"),
]  # fmt: skip
_DELAY_SECONDS = 0.15
"""Time after the last key until the edits count."""
_EXPLAIN_STEP = 0.02
"""A divergence is explained again when the held memory has changed by this share of the budget."""
_Divergence = tuple[int, HistoryKey, int, bool, Status]
"""Id of the budget, process on a GPU, held memory in steps, whether torch's counters are known, and status."""


class AttachScreen(Screen[None]):
    """Reads the job of a process, and follows its run.

    Args:
        watchlist: compares the run with its budget as soon as the job is complete.
        attach: reads a running process; called off the UI thread.
        estimate: a quick estimate, likewise.
        estimate_changed: not corrected, for the many jobs that may explain a divergence; None: ``estimate``.
        refine: a better and slower one, likewise; None: there is none.
        answers: the file of settings that the user fills in.
        attached: what was read of processes before: an ended process can no longer be read.
        board: the latest board, until ``show_board`` brings the next.
        pid: the process.
        start_time: start of that process, if known: pids are reused.
    """

    TITLE, AUTO_FOCUS = "Attach", ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = ATTACH_KEYS
    DEFAULT_CSS = """
    AttachScreen #attached { height: 1fr; }
    AttachScreen #run { padding: 0 1; text-overflow: ellipsis; }
    AttachScreen #warnings { padding: 0 1; max-height: 4; overflow-y: auto; text-wrap: wrap; }
    AttachScreen #halves { height: 1fr; layout: horizontal; border-top: hkey $foreground 20%; }
    AttachScreen #settings { width: 2fr; max-width: 66; border-right: vkey $foreground 20%; }
    AttachScreen #memory { width: 3fr; }
    AttachScreen #problem { padding: 0 1; color: $text-error; text-wrap: wrap; }
    AttachScreen #rehearsal { padding: 0 1; color: $text-warning; text-wrap: wrap; }
    AttachScreen.-narrow #settings { width: 1fr; max-width: 100%; border-right: none; display: none; }
    AttachScreen.-narrow.-settings #settings { display: block; }
    AttachScreen.-narrow.-settings #memory { display: none; }
    AttachScreen.-unreadable #settings { display: none; }
    """

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
        pid: int,
        start_time: float | None = None,
    ) -> None:
        super().__init__()
        self._watchlist, self._board = watchlist, board
        self._estimate_changed = estimate_changed or estimate
        self._pid = pid
        """The process that was read last."""
        self._keys: tuple[ProcessKey, ...] = ((pid, start_time),)
        """Processes of the run that is shown."""
        self._on_gpus: tuple[ProcessRow, ...] = ()
        """Processes of the run that are on GPUs."""
        self._missing: MissingReason = NOT_ON_GPU_YET
        """Why there are none, if there are none."""
        self._attachment: Attachment | None = None
        self._budget: Budget | None = None
        self._edited_field = "model.id"
        self._takes_edits = False
        self._delayed: Timer | None = None
        answers, known = answers or SavedAnswers(), {} if attached is None else attached
        self._answers = AnswerWriter(answers, self.call_later, partial(self.notify, severity="warning", markup=False))
        self._reader = RunReader(
            attach, answers, known, self.call_later, on_read=self._show_attachment, on_error=self._show_unread
        )
        self._reading = FormReading(self, on_read=self._show_read_again, on_error=self._keep_old_reading)
        self._step = LiveStepScreen(self)
        self._estimates = JobEstimates(
            estimate,
            refine,
            self.call_later,
            on_budget=self._follow_with_budget,
            on_error=self._show_estimate_error,
            on_not_refined=self._step.show_not_refined,
        )
        self._read_run = attach
        self._look_task = LatestOnlyTask("attach, program", self.call_later, self._ask_to_rehearse, self._end_rehearsal)
        self._rehearse_task = LatestOnlyTask("rehearse", self.call_later, self._show_rehearsed, self._end_rehearsal)
        self._rehearsal: str | None = None
        """How far the rehearsal of this run is; None: none is running."""
        self._not_rehearsed = ""
        """Why the run could not be rehearsed."""
        self._explain_task: LatestOnlyTask[Divergence] = LatestOnlyTask(
            "explain", self.call_later, lambda divergence: self.query_one(RankView).show_explanation(divergence)
        )
        self._explained: _Divergence | None = None
        """The divergence that is explained, or that is being explained."""

    def compose(self) -> ComposeResult:
        """The whole run, and below it one of its processes."""
        yield TitleLine(id="title")
        with Vertical(id="attached"):
            yield StaticLines(id="run")
            yield StaticLines(id="warnings")
            yield RankTable(id="ranks")
            yield StaticLines(id="problem")
            yield StaticLines(id="rehearsal")
            with Horizontal(id="halves"):
                yield Vertical(id="settings")
                yield RankView(id="memory")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the process."""
        self._show_run()
        self._read(*self._keys[0])

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._cancel()
        self._explain_task.cancel()

    def show_board(self, board: Board) -> None:
        """Show the run as it is on this board."""
        self._board = board
        with self.app.batch_update():
            self._show_run()

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again once the typing pauses; with another model, the run is read again before."""
        attachment, on_gpu = self._attachment, self._on_gpu
        if attachment is None or not self._takes_edits:  # the form of a run that is no longer shown
            return
        form, self._edited_field = self.query_one(JobForm), event.key
        self._estimates.cancel()
        self._keep_answer(form, event.key)
        if self._delayed is not None:
            self._delayed.stop()
        if self._reading.start(form, lambda edits: self._reader.read_again(attachment, edits, on_gpu=on_gpu)):
            self._show_problem(f"Reading the run again with {form.state.model}.", mark="…")
        else:
            self._delayed = self.set_timer(_DELAY_SECONDS, lambda: self._estimate_edited(attachment))

    @on(RankTable.Opened)
    def _explain_end(self) -> None:
        """Open the explanation of a rank that ended out of memory."""
        if (row := self._selected) is not None:
            open_crash_on(cast("BoardApp", self.app), row)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable keys that would do nothing."""
        match action:
            case "zoom":
                return not isinstance(self.focused, Input)  # its keys are typed into the field
            case "rehearse":
                return self._rehearsal is not None or self._may_rehearse
            case "focus_settings" if self._attachment is not None:
                focused = self.focused
                return parameters != (focused is not None and self.query_one("#settings") in focused.ancestors,)
            case "forget" | "focus_settings":
                return self._attachment is not None
        return True

    def action_zoom(self, by: int) -> None:
        """Show a longer time (1) or a shorter one (-1)."""
        self.query_one(RankView).zoom(by)

    def action_focus_settings(self, to_settings: bool) -> None:
        """Move the focus to the settings, or back to the run."""
        self._focus_on(self.query_one(JobForm) if to_settings else None)

    def action_back(self) -> None:
        """Stop the rehearsal that runs; without one, leave the screen."""
        if self._rehearsal is None:
            self.app.pop_screen()
        else:
            self._end_rehearsal()

    def action_rehearse(self) -> None:
        """Ask whether to rehearse this run, and show what would be started; stop the rehearsal that runs."""
        if self._rehearsal is not None:
            self._end_rehearsal()
            return
        pid, start_time = self._keys[0]
        on_gpu = self._on_gpu

        def look() -> "tuple[RunProgram, WhatRuns]":
            found = find_program(pid, start_time=start_time, on_gpu=on_gpu)
            return found, found.what_runs()

        self._look_task.submit(look)

    def action_forget(self) -> None:
        """Forget the settings that the user filled in for this command line, and read the process again."""
        attachment = self._attachment
        if attachment is not None:
            self._answers.remove()
            self._watchlist.dismiss_runs(self._keys)
            self.notify("Your settings for this command line are forgotten.")
            self._read(attachment.pid, attachment.start_time, recall=False)

    def action_step(self) -> None:
        """Open the step screen on the job."""
        row = self._selected
        budget = self._budget or (row.budget if row else None)
        if budget is None:
            self.notify("There is no budget for this process yet, so there is no step to show.", severity="warning")
        else:
            self._step.open(budget, self._estimates, gpu_bytes=row.gpu.total_bytes if row else None)

    @property
    def _may_rehearse(self) -> bool:
        """Whether this user runs it, on this machine and in no container."""
        pid = self._pid
        if is_view_only(self) or is_only_in_recording(self._board, pid):
            return False
        if not any(map(self._watchlist.is_running, self._keys)):
            return False
        return is_own_process(pid) if self._attachment is None else self._attachment.worker_python is not None

    def _ask_to_rehearse(self, looked_at: "tuple[RunProgram, WhatRuns]") -> None:
        (found, what), pid = looked_at, self._pid

        def answered(agreed: bool | None) -> None:
            if agreed and self._pid == pid:
                self._rehearse(found)

        self.app.push_screen(RehearseScreen(what, BESIDE_RUN_REMARK), answered)

    def _rehearse(self, found: "RunProgram") -> None:
        """Run the program of a run, to which the user has agreed."""
        (pid, start_time), on_gpu, gpu = self._keys[0], self._on_gpu, self._watchlist.gpu_type

        held = sum(row.process.pid == pid for row in self._board.processes) if self._board else 1

        def tell(text: str) -> None:
            self.call_later(self._show_rehearsal, text)

        def rehearse() -> tuple[Attachment, Budget]:
            budget = found.rehearse(gpu=gpu, gpus=held, progress=tell)
            return with_rehearsal(self._read_run(pid, start_time=start_time, on_gpu=on_gpu), budget), budget

        self._not_rehearsed, self._rehearsal = "", "rehearsing this run"
        self._rehearse_task.submit(rehearse)
        self._show_rehearsal(self._rehearsal)
        self.refresh_bindings()

    async def _show_rehearsed(self, rehearsed: tuple[Attachment, Budget]) -> None:
        """Make the rehearsed program the job of the run, and its budget the run's."""
        attachment, budget = rehearsed
        self._end_rehearsal()
        self._watchlist.dismiss_runs(self._keys)
        await self._show_attachment(attachment)
        if attachment.reading.value("program.kept") is None:
            self._estimates.cancel()
            self._follow_with_budget(budget)

    def _end_rehearsal(self, failure: str = "") -> None:
        """End the rehearsal, if one runs; ``failure`` says why there is none."""
        self._cancel_rehearsal()
        self._not_rehearsed = failure
        self._draw_rehearsal()
        self.refresh_bindings()

    def _cancel_rehearsal(self) -> None:
        self._look_task.cancel()
        self._rehearse_task.cancel()
        self._rehearsal, self._not_rehearsed = None, ""

    def _show_rehearsal(self, text: str) -> None:
        """Show how far the rehearsal is, unless it was stopped."""
        if self._rehearsal is not None:
            self._rehearsal = text
            self._draw_rehearsal()

    def _draw_rehearsal(self) -> None:
        """Show the progress or the failure of the rehearsal; offer one if the run was not read, or read with doubts."""
        key, attachment = shown_key("attach.rehearse"), self._attachment
        is_read = attachment is not None and not attachment.reading.missing and not attachment.warnings
        text = ""
        if self._rehearsal is not None:
            text = f"… {self._rehearsal}; {key} stops it"
        elif self._not_rehearsed:
            text = f"✗ {self._not_rehearsed}"
        elif not is_read and (attachment or self.has_class("-unreadable")) and self._may_rehearse:
            text = f"{key} rehearses this run: about 20 s of one core; its files are not touched"
        self.query_one("#rehearsal", StaticLines).show_if_any([Content(printable(text))] if text else [])

    async def replace_form(self, form: JobForm) -> None:
        """Show the settings of the run in this form."""
        settings = self.query_one("#settings")
        await settings.remove_children()
        form.disabled = is_view_only(self)
        await settings.mount(form)

    @property
    def _selected(self) -> ProcessRow | None:
        """The process under the cursor, which is drawn; None: it holds nothing on a GPU."""
        return self.query_one(RankTable).process

    @property
    def _on_gpu(self) -> set[int] | None:
        return {row.process.pid for row in self._board.processes} or None if self._board else None

    @property
    def _shown_run(self) -> RunRow | None:
        """The followed run that the processes belong to."""
        runs = self._board.runs if self._board else ()
        return next((run for run in runs if not set(self._keys).isdisjoint(run.pids)), None)

    def _read(self, pid: int, start_time: float | None, *, recall: bool = True) -> None:
        self._pid = pid
        self._cancel()
        if is_only_in_recording(self._board, pid):
            is_known = self._shown_run is not None  # the recording says what it runs
            sentence = f"Process {pid} is in the open recording, not on this machine."
            self.call_later(lambda: self._show_unread("" if is_known else sentence) if self._pid == pid else None)
            return
        self._reader.read(pid, start_time, on_gpu=self._on_gpu, recall=recall)

    async def _show_attachment(self, attachment: Attachment) -> None:
        """Show the job of a process that was read, and estimate it."""
        keys = self._reader.remember(attachment)
        runs = (run for run in self._watchlist.runs() if not set(keys).isdisjoint(run.pids) and not run.missing)
        known = next((run.job for run in runs), None)
        try:
            job = known or attachment.reading.job()
        except VramtopError as error:
            self._show_unreadable(error.message)
            return
        self._keys, self._attachment, reading = keys, attachment, attachment.reading
        self._budget = self._shown_run.budget if known and self._shown_run else None
        missing = () if known else reading.missing
        form = JobForm(job, origins=_origins(attachment), missing=missing)
        await self.replace_form(form)
        self._answers.run, self._answers.values = run_key(attachment), {}
        self._takes_edits = True
        self.remove_class("-unreadable")
        self._show_run()
        is_no_known_model = "model.id" in missing and self._may_rehearse  # a rehearsal needs none of the fields
        self._focus_on(form if missing and not is_no_known_model else None)
        self._estimate_job()

    def _show_read_again(self, attachment: Attachment) -> None:
        """Show what was read with another model, and the user's edits of it."""
        if not self._takes_edits:
            return
        form, reading = self.query_one(JobForm), attachment.reading
        try:
            job = reading.job()
        except VramtopError as error:
            self._show_estimate_error(error.message)
            return
        form.show_reading(job, _origins(attachment), reading.missing)
        for key in form.state.edited:
            self._keep_answer(form, key)
        self._reader.remember(attachment)
        self._estimate_edited(attachment)

    def _keep_old_reading(self, sentence: str) -> None:
        """Keep what was read with another model, and say why."""
        if (old := self._attachment) is not None and self._takes_edits:
            note = f"Settings derived from the model are for the previous model: {sentence}"
            self._estimate_edited(replace(old, warnings=tuple(dict.fromkeys([note, *old.warnings]))))

    def _keep_answer(self, form: JobForm, key: str) -> None:
        if answer := form.state.setting(key):
            self._answers.values |= [answer]
        elif form.state.is_cleared(key):
            self._answers.remove(TUNING if key.startswith(f"{TUNING}.") else key)

    async def _show_unread(self, sentence: str) -> None:
        """Show what was read of the run earlier; if that is nothing, say why it cannot be read now."""
        attachment = self._reader.remembered(self._keys)
        if attachment is None:
            self._show_unreadable(sentence)
        else:
            await self._show_attachment(attachment)

    def _show_unreadable(self, sentence: str) -> None:
        """Show the run without its settings, and why there are none."""
        self.add_class("-unreadable")
        self._show_problem(sentence)
        self._draw_rehearsal()
        self._focus_on(None)

    def _cancel(self) -> None:
        """Discard what is being read and estimated; further edits are of another run."""
        self._takes_edits = False
        self._reading.cancel()
        if self._delayed is not None:
            self._delayed.stop()
        self._reader.cancel()
        self._estimates.cancel()
        self._cancel_rehearsal()

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
        self._answers.save()
        self._step.update(budget, self._estimates)
        self._watchlist.set_budget(budget)
        self._watchlist.add_run(WatchedJob(job=budget.job, pids=self._keys))
        self._board = self._watchlist.rebuild_board() or self._board
        self._show_run()

    def _show_estimate_error(self, sentence: str) -> None:
        self.query_one(JobForm).show_error(self._edited_field, sentence)
        self._show_problem(sentence)

    def _show_problem(self, sentence: str | None, *, mark: str = "✗") -> None:
        """Say why the job is incomplete or invalid, or what is awaited; None or empty: it is neither."""
        note = " Until then, the previous settings apply." if self._budget else ""
        words = [Content(f"{mark} {sentence}{note}")] if sentence else []
        self.query_one("#problem", StaticLines).show_if_any(words)

    def _focus_on(self, form: JobForm | None) -> None:
        """Move the focus to the form or to the run; narrow terminals show only one of them."""
        self.set_class(form is not None, "-settings")
        (form.query("Input, Choice").first() if form else self.query_one(RankTable)).focus()
        self.refresh_bindings()

    @on(Resize)
    def _show_run(self) -> None:
        """Draw the run."""
        if not self.query("#budget"):  # a size, or a board, may come before the widgets
            return
        board, attachment = self._board, self._attachment
        keys = self._keys = with_start_times(board, self._keys)
        self.show_feed()
        run, processes = self._shown_run, board.processes if board else ()
        rows = self._on_gpus = run.rows if run else tuple(row for row in processes if row.process.key in keys)
        self._missing = NOT_ON_GPU_YET if rows else missing_reason(board, keys, self._watchlist.is_running)
        reading = "" if self.has_class("-unreadable") else "… reading "
        header = Content.styled(f"{reading}process {keys[0][0]}", MUTED)
        if attachment:
            header = run_header(attachment, rows, self._missing.short)
        elif rows:
            header = process_header(rows)
        self.query_one("#run", StaticLines).show(header, layout=True)
        warnings = [warning(printable(text)) for text in attachment.warnings] if attachment else []
        self.query_one("#warnings", StaticLines).show_if_any(warnings)
        self._draw_rehearsal()
        placements = self._placements() or dict.fromkeys(keys, RankPlacement(missing=self._missing.short))
        self.query_one(RankTable).show(rows, placements, width=self.size.width)
        self._draw_process()

    def show_feed(self) -> None:
        """Draw the name of the run, and how old its figures are."""
        width, app = self.size.width - 2, self.app
        signs = join_to_width(feed_signs(app.feed) if isinstance(app, BoardApp) else [], width)
        self.query_one("#title", StaticLines).show(left_and_right(run_title(self._shown_run), signs, width))

    def _placements(self) -> dict[ProcessKey, RankPlacement]:
        """Return the rank of each process; those on no GPU yet with the GPU they will take, or why they are on none."""
        board, attachment = self._board, self._attachment
        if attachment is None:
            return {}
        present = {row.process.key for row in self._on_gpus}
        if board and any((rank.pid, rank.start_time) not in present for rank in attachment.ranks):
            attachment = attachment.with_gpu_assignments([gpu.reading for gpu in board.gpus])
        placements: dict[ProcessKey, RankPlacement] = {}
        for rank in attachment.ranks:
            key = rank.pid, rank.start_time
            missing = NOT_ON_GPU_YET if key in present else missing_reason(board, (key,), self._watchlist.is_running)
            gpu = "-" if rank.gpu_assignment.gpu is None else str(rank.gpu_assignment.gpu)
            placements[key] = RankPlacement(rank.rank, gpu, missing.short)
        return placements

    @on(RankTable.Selected)
    def _draw_process(self) -> None:
        """Draw the process under the cursor."""
        row, view, board = self._selected, self.query_one(RankView), self._board
        if row is None:
            view.show_nothing(self._missing.sentence, self._budget)
            return
        now = board.snapshot.time if board else 0.0
        view.show(row, history=self._watchlist.history.lifetime(row.key), now=now)
        self._explain(row)

    def _explain(self, row: ProcessRow) -> None:
        """Explain the process's divergence, if it has one that is not explained yet."""
        attachment, budget, comparison = self._attachment, row.budget, row.comparison
        if budget is None or comparison is None or not comparison.diverges:
            self._explained = None
            self._explain_task.cancel()
            self.query_one(RankView).show_explanation(None)
            return
        high = comparison.peak_usage
        held = (high.size_bytes if high else comparison.observed_bytes) or 0
        steps = round(held / max(1.0, _EXPLAIN_STEP * budget.peak.device_bytes))
        divergence = (id(budget), row.key, steps, row.process.counters is not None, comparison.status)
        if divergence == self._explained:
            return
        self._explained = divergence
        assumed = [f.key for f in attachment.reading.findings if not f.written] if attachment else []
        estimate = partial(self._estimate_changed, environ=attachment.estimate_environ if attachment else None)
        self._explain_task.submit(lambda: diagnose(budget, comparison, row.process, estimate, assumed=assumed))


def _origins(attachment: Attachment) -> dict[str, str]:
    return {**attachment.reading.evidence(), **attachment.reading.refused}


def open_attach(app: BoardApp) -> None:
    """Show the run of the process under the cursor, else the latest one."""
    runs = app.board.runs if app.board else ()
    selected = app.selected_process
    key = selected.process.key if selected else runs[-1].pids[0] if runs and runs[-1].pids else None
    if key is None:
        app.notify("There is no process on a GPU to attach to; vramtop PID opens one.", severity="warning")
    else:
        open_attach_on(app, *key)


def open_attach_on(app: BoardApp, pid: int, start_time: float | None = None) -> None:
    """Open the screen on this process."""
    screen = AttachScreen(
        app.watchlist,
        estimate=app.estimate or estimate,
        estimate_changed=estimate,
        refine=app.refine,
        attached=app.attachments,
        board=app.board,
        pid=pid,
        start_time=start_time,
    )
    app.push_once(screen)
