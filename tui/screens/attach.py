"""Attach: from a running process to its job, with evidence for every setting, and on to its memory and budget."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Label, Static

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import CancelledError, VramtopError
from vramtop.estimator.job import Job
from vramtop.estimator.methods import estimate
from vramtop.monitor.attach import Attachment, attach
from vramtop.monitor.board import Board, ProcessRow
from vramtop.monitor.snapshot import WatchedJob
from vramtop.monitor.watch import Watchlist

from ..attach_text import run_content, warnings_content
from ..job_fields import model_names
from ..newest import Newest
from ..widgets.budget_view import deeper
from ..widgets.job_form import JobForm
from ..widgets.lines import Lines
from ..widgets.pid_chooser import PidChooser
from ..widgets.run_view import RunView
from .step import StepScreen

if TYPE_CHECKING:
    from textual.timer import Timer

_TYPING_SECONDS = 0.15


class Estimate(Protocol):
    """An estimate that looks for models where the attached process does, and counts with its libraries."""

    def __call__(self, job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        """The budget; may raise VramtopError."""


class AttachScreen(Screen[None]):
    """Asks for a process, reads its job, and follows it.

    Args:
        watchlist: holds the process against its job from the moment when the job is complete.
        attach: reads a running process; called on a thread of its own.
        estimate: a quick estimate, likewise.
        refine: a better and slower one, likewise; None: there is none.
        pid: the process; None: the user is asked.
    """

    TITLE = "Attach"
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("f3", "choose", "Another process", key_display="F3"),
        Binding("f5", "step", "Step", key_display="F5"),
        Binding("t", "step", "Step", show=False),
    ]
    DEFAULT_CSS = """
    AttachScreen #title { width: 1fr; padding: 0 1; text-style: bold; background: $panel; }
    AttachScreen #run { padding: 0 1; text-overflow: ellipsis; }
    AttachScreen #warnings { padding: 0 1; max-height: 4; overflow-y: auto; text-wrap: wrap; }
    AttachScreen #attached { height: 1fr; }
    AttachScreen #halves { height: 1fr; layout: horizontal; border-top: hkey $foreground 20%; }
    AttachScreen #settings { width: 2fr; max-width: 66; border-right: vkey $foreground 20%; }
    AttachScreen #memory { width: 3fr; }
    AttachScreen #doubt { height: auto; padding: 0 1; color: $text-error; display: none; }
    AttachScreen #doubt.-told { display: block; }
    AttachScreen.-narrow #halves { layout: vertical; }
    AttachScreen.-narrow #settings { width: 1fr; max-width: 100%; height: 2fr; border-right: none; }
    AttachScreen.-narrow #memory { width: 1fr; height: 3fr; border-top: hkey $foreground 20%; }
    """

    @dataclass
    class Attached(Message):
        """A process was read, or could not be."""

        pid: int
        answer: Attachment | str

    @dataclass
    class Estimated(Message):
        """An estimate has come back: a budget, or the sentence why there is none."""

        asked: int
        answer: Budget | str

    @dataclass
    class NotRefined(Message):
        """There is no better estimate than the quick one, and why."""

        asked: int
        sentence: str

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        attach: Callable[[int], Attachment] = attach,
        estimate: Estimate = estimate,
        refine: Estimate | None = None,
        pid: int | None = None,
    ) -> None:
        super().__init__()
        self._watchlist = watchlist
        self._read_process = attach
        self._estimate = estimate
        self._refine = refine
        self._pid = pid
        self._work = Newest("attach")
        self._deep = Newest("attach, refined")
        self._gone = threading.Event()
        self._attachment: Attachment | None = None
        self._budget: Budget | None = None
        self._step: StepScreen | None = None
        self._unrefined = False
        self._board: Board | None = None
        self._asked = 0
        self._edited = "model.id"
        self._due: Timer | None = None

    def compose(self) -> ComposeResult:
        """First the choice of a process, then the run."""
        yield Label("Attach: what does a running job take?", id="title")
        yield PidChooser(id="choose")
        with Vertical(id="attached"):
            yield Lines(id="run")
            yield Lines(id="warnings")
            yield Static(id="doubt", markup=False)
            with Horizontal(id="halves"):
                yield Vertical(id="settings")
                yield RunView(id="memory")
        yield Footer()

    def on_mount(self) -> None:
        """Read the process, or ask for one."""
        self.query_one("#attached").display = False
        if self._pid is None:
            self.query_one(PidChooser).query_one(Input).focus()
        else:
            self._read(self._pid)

    def on_unmount(self) -> None:
        """Nobody waits for answers any more."""
        self._gone.set()
        self._deep.interrupt()

    def show_board(self, board: Board) -> None:
        """Show how the run stands now."""
        self._board = board
        self.query_one(PidChooser).show_board(board)
        self._show_run()

    @on(PidChooser.Chosen)
    def pid_chosen(self, event: PidChooser.Chosen) -> None:
        """Read that process."""
        self._read(event.pid)

    @on(Attached)
    async def attached(self, event: Attached) -> None:
        """Show what was read, or why nothing could be."""
        if event.pid != self._pid:
            return
        if self._is_recorded(event.pid):
            self._choose(f"Process {event.pid} is in the recording that is played, not on this machine.")
            return
        if isinstance(event.answer, str):
            self._choose(event.answer)
            return
        attachment = event.answer
        known = self._known_job(attachment)
        try:
            base = known or attachment.reading.job()
        except VramtopError as error:
            self._choose(error.message)
            return
        self._attachment, self._budget = attachment, None
        warnings = self.query_one("#warnings", Lines)
        warnings.show(warnings_content(attachment), layout=True)
        warnings.display = bool(attachment.warnings)
        missing = () if known else attachment.reading.missing
        form = JobForm(base, origins=attachment.reading.evidence(), missing=missing, models=model_names())
        settings = self.query_one("#settings")
        await settings.remove_children()
        await settings.mount(form)
        self.query_one(PidChooser).display = False
        self.query_one("#attached").display = True
        form.query("Input, Choice").first().focus()
        self._show_run()
        self._ask()

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again once the typing pauses."""
        self._edited = event.key
        self._asked += 1
        self._unrefined = False
        self._deep.interrupt()  # nobody asks for the settings before this edit any more
        if self._due is not None:
            self._due.stop()
        self._due = self.set_timer(_TYPING_SECONDS, self._ask)

    @on(Estimated)
    def estimated(self, event: Estimated) -> None:
        """Follow the run with the newest budget; older answers come too late."""
        attachment = self._attachment
        if event.asked != self._asked or attachment is None:
            return
        if isinstance(event.answer, str):
            self.query_one(JobForm).complain(self._edited, event.answer)
            self._doubt(event.answer)
            return
        if deeper(event.answer, self._budget):
            self._budget = event.answer
        self.query_one(JobForm).settle()
        self._doubt(None)
        budget = self._budget or event.answer
        if self._step is not None:
            self._step.take(budget, waiting=self._is_waiting(budget))
        self._watchlist.refine(budget)
        pids = tuple((rank.pid, rank.start_time) for rank in attachment.ranks)
        self._watchlist.watch(WatchedJob(job=budget.job, pids=pids))
        self._board = self._watchlist.again() or self._board
        self._show_run()

    @on(NotRefined)
    def not_refined(self, event: NotRefined) -> None:
        """The quick answer stands."""
        if event.asked == self._asked:
            self._unrefined = True
            if self._step is not None:
                self._step.give_up(event.sentence)

    def action_choose(self) -> None:
        """Ask for another process."""
        self._choose("")

    def action_step(self) -> None:
        """Draw the job's training step."""
        budget = self._budget
        if budget is None:
            self.notify("There is no budget for this process yet, so there is no step to draw.", severity="warning")
            return
        rows = self._rows(self._attachment) if self._attachment else []
        self._step = StepScreen(
            budget,
            card_bytes=rows[0].gpu.total_bytes if rows else None,
            waiting=self._is_waiting(budget),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
        )
        self.app.push_screen(self._step, lambda _: self._forget_step())

    def _forget_step(self) -> None:
        self._step = None

    def _is_waiting(self, budget: Budget) -> bool:
        return self._refine is not None and budget.method == "formula" and not self._unrefined

    def _choose(self, failure: str) -> None:
        self._pid = None
        chooser = self.query_one(PidChooser)
        chooser.display = True
        self.query_one("#attached").display = False
        chooser.fail(failure)
        chooser.query_one(Input).focus()

    def _read(self, pid: int) -> None:
        self._pid = pid
        self._asked += 1
        self.query_one(PidChooser).wait(pid)
        self._work.submit(lambda: self._answer_attach(pid))

    def _ask(self) -> None:
        form = self.query_one(JobForm)
        job, attachment = form.job, self._attachment
        if job is None or attachment is None:
            self._doubt(form.wrong)
            return
        asked = self._asked
        self._work.submit(lambda: self._answer_estimate(self._estimate, job, attachment, asked))
        if self._refine is not None:
            refine = self._refine
            self._deep.submit(lambda: self._answer_estimate(refine, job, attachment, asked))

    def _answer_attach(self, pid: int) -> None:
        """Runs on a thread of its own."""
        answer: Attachment | str
        try:
            answer = self._read_process(pid)
        except VramtopError as error:
            answer = error.message
        if not self._gone.is_set():
            self.post_message(self.Attached(pid, answer))

    def _answer_estimate(self, estimate: Estimate, job: Job, attachment: Attachment, asked: int) -> None:
        """Runs on a thread of its own."""
        answer: Budget | str
        try:
            answer = estimate(job, environ=attachment.environ_hf, python=attachment.worker_python)
        except VramtopError as error:
            if estimate is self._refine:
                if not isinstance(error, CancelledError) and not self._gone.is_set():
                    self.post_message(self.NotRefined(asked, error.message))
                return
            answer = error.message
        if not self._gone.is_set():
            self.post_message(self.Estimated(asked, answer))

    def _doubt(self, sentence: str | None) -> None:
        doubt = self.query_one("#doubt", Static)
        kept = " Until then the last settings count." if self._budget else ""
        doubt.update(f"✗ {sentence}{kept}" if sentence else "")
        doubt.set_class(sentence is not None, "-told")

    def _show_run(self) -> None:
        attachment = self._attachment
        if attachment is None:
            return
        rows = self._rows(attachment)
        now = self._board.snapshot.time if self._board else 0.0
        view = self.query_one(RunView)
        if rows or self._budget is None:
            view.show(rows, history_of=self._history, now=now)
        else:
            view.show_budget(self._budget)
        self.query_one("#run", Lines).show(run_content(attachment, rows), layout=True)

    def _is_recorded(self, pid: int) -> bool:
        """The process is known from a recording alone; one of the same pid that runs here is another one."""
        board = self._board
        if board is None or board.snapshot.source.kind == "nvml":
            return False
        return any(row.process.pid == pid for row in board.processes)

    def _known_job(self, attachment: Attachment) -> Job | None:
        """The job that the user has completed for this run before."""
        keys = {(rank.pid, rank.start_time) for rank in attachment.ranks}
        return next((known.job for known in self._watchlist.watched() if keys & set(known.pids)), None)

    def _rows(self, attachment: Attachment) -> list[ProcessRow]:
        keys = {(rank.pid, rank.start_time) for rank in attachment.ranks}
        rows = [row for row in self._board.processes if row.process.key in keys] if self._board else []
        return sorted(rows, key=lambda row: row.process.used_bytes or 0, reverse=True)

    def _history(self, row: ProcessRow) -> list[tuple[float, int | None]]:
        return list(self._watchlist.history.process((row.gpu.index, *row.process.key)))
