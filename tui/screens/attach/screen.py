"""Attach: from a running process to its job, with evidence for every setting, and on to its memory and budget."""

import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.estimation import estimate
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.attach.saved_answers import SavedAnswers, run_key
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import ProcessKey, WatchedJob

from ...background.answer_writer import AnswerWriter
from ...background.job_estimates import Estimate, Estimates
from ...background.run_reader import Attach, RunReader
from ...job.form_fields import TUNING, model_names
from ...job.job_form import JobForm
from ...widgets.budget_view import is_better_estimate
from ...widgets.keys_line import KeysLine
from ...widgets.static_lines import StaticLines
from ..step.screen import StepScreen
from .followed_run import FollowedRun, find_run, is_only_in_recording, with_start_times
from .pid_chooser import PidChooser
from .rank_table import RankTable
from .rank_view import RankView
from .run_summary import run_tabs

if TYPE_CHECKING:
    from textual.timer import Timer

_TYPING_SECONDS = 0.15


class AttachScreen(Screen[None]):
    """Asks for a process, reads its job, and follows it; other runs are a key away.

    Args:
        watchlist: holds the process against its job from the moment when the job is complete.
        attach: reads a running process; called on a thread of its own.
        estimate: a quick estimate, likewise.
        refine: a better and slower one, likewise; None: there is none.
        answers: remembers what the user fills in.
        attached: what was read of processes before: of one that has ended nothing more can be read.
        board: the newest figures, until ``show_board`` brings newer ones.
        pid: the process; None: the user is asked. With its start time, where that is known: pids are reused.
    """

    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("f3", "choose", "Process", key_display="F3"),
        Binding("f5,t", "step", "Step", key_display="F5"),
        Binding("f6", "other_pane", "Settings", key_display="F6"),
        Binding("f8", "forget", "Forget", key_display="F8", show=False),
        Binding("plus,equals_sign", "zoom(-1)", "Zoom", key_display="+/-"),
        Binding("minus,underscore", "zoom(1)", "Zoom out", show=False),
        Binding("right_square_bracket", "run(1)", "Runs", key_display="[/]"),
        Binding("left_square_bracket", "run(-1)", "Run before", show=False),
        Binding("x", "dismiss_run", "Dismiss"),
    ]
    DEFAULT_CSS = """
    AttachScreen #title { width: 1fr; height: 1; padding: 0 1; text-style: bold; background: $panel; }
    AttachScreen.-narrow #settings { width: 1fr; max-width: 100%; border-right: none; display: none; }
    AttachScreen.-narrow.-asking #settings { display: block; }
    AttachScreen.-narrow.-asking #memory { display: none; }
    AttachScreen.-refused #settings { display: none; }
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
        attach: Attach = read_run,
        estimate: Estimate = estimate,
        refine: Estimate | None = None,
        answers: SavedAnswers | None = None,
        attached: MutableMapping[ProcessKey, Attachment] | None = None,
        board: Board | None = None,
        pid: int | None = None,
        start_time: float | None = None,
    ) -> None:
        super().__init__()
        self._watchlist = watchlist
        self._estimate = estimate
        self._pid: int | None = None
        self._keys: tuple[ProcessKey, ...] = () if pid is None else ((pid, start_time),)
        kept = answers or SavedAnswers()
        self._given = AnswerWriter(kept, self._say_remembered)
        self._reader = RunReader(
            attach,
            kept,
            {} if attached is None else attached,
            lambda pid, answer: self._post(self.Attached(pid, answer)),
        )
        self._estimates = Estimates(
            estimate,
            refine,
            take=lambda asked, answer: self._post(self.Estimated(asked, answer)),
            give_up=lambda asked, sentence: self._post(self.NotRefined(asked, sentence)),
        )
        self._gone = threading.Event()
        self._attachment: Attachment | None = None
        self._budget: Budget | None = None
        self._step: StepScreen | None = None
        self._board = board
        self._edited = "model.id"
        self._due: Timer | None = None

    def compose(self) -> ComposeResult:
        """First the choice of a process, then the run."""
        yield StaticLines(id="title")
        yield PidChooser(id="choose")
        yield FollowedRun(self._watchlist.history, self._estimate, self._watchlist.is_running, id="attached")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the process, or ask for one."""
        if self._keys:
            self._open(self._keys)
        else:
            self.action_choose()

    def on_unmount(self) -> None:
        """Nobody waits for answers any more."""
        self._gone.set()
        self._estimates.renew()

    def show_board(self, board: Board) -> None:
        """Show how the run stands now."""
        self._board = board
        with self.app.batch_update():
            if not self._keys:
                self.query_one(PidChooser).show_board(board)
            self._show_run()

    @on(PidChooser.Chosen)
    def pid_chosen(self, event: PidChooser.Chosen) -> None:
        """Read that process."""
        self._open(((event.pid, None),))

    @on(Attached)
    async def attached(self, event: Attached) -> None:
        """Show what was read, or why nothing could be."""
        if event.pid != self._pid:
            return
        answer = event.answer
        attachment = self._reader.before(self._keys) if isinstance(answer, str) else answer
        if attachment is None:
            self._refuse(str(answer))
            return
        keys = self._reader.keep(attachment)
        known = next((run.job for run in self._watchlist.runs() if set(keys) & set(run.pids)), None)
        try:
            base = known or attachment.reading.job()
        except VramtopError as error:
            self._refuse(error.message)
            return
        self._keys = keys
        self._attachment, self._budget = attachment, None
        self._given.begin(run_key(attachment))
        missing = () if known else attachment.reading.missing
        form = JobForm(base, origins=attachment.reading.evidence(), missing=missing, models=model_names())
        settings = self.query_one("#settings")
        await settings.remove_children()
        await settings.mount(form)
        self.remove_class("-refused")
        self._show_run()
        self._focus_on(form if missing else None)
        self._ask()

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again once the typing pauses."""
        if self._attachment is None:  # of a run that is shown no more
            return
        form = self.query_one(JobForm)
        if answer := form.answer(event.key):
            self._given.take(*answer)
        elif form.is_cleared(event.key):
            self._given.drop(TUNING if event.key.startswith(f"{TUNING}.") else event.key)
        self._edited = event.key
        self._estimates.renew()
        if self._due is not None:
            self._due.stop()
        self._due = self.set_timer(_TYPING_SECONDS, self._ask)

    @on(Estimated)
    def estimated(self, event: Estimated) -> None:
        """Follow the run with the newest budget; older answers come too late."""
        attachment = self._attachment
        if event.asked != self._estimates.asked or attachment is None:
            return
        if isinstance(event.answer, str):
            self.query_one(JobForm).complain(self._edited, event.answer)
            self._doubt(event.answer)
            return
        if is_better_estimate(event.answer, self._budget):
            self._budget = event.answer
        self.query_one(JobForm).settle()
        self._doubt(None)
        self._given.keep()
        budget = self._budget or event.answer
        if self._step is not None:
            self._step.take(budget, waiting=self._estimates.is_waiting(budget))
        self._watchlist.set_budget(budget)
        self._watchlist.add_run(WatchedJob(job=budget.job, pids=self._keys))
        self._board = self._watchlist.rebuild_board() or self._board
        self._show_run()

    @on(NotRefined)
    def not_refined(self, event: NotRefined) -> None:
        """The quick answer stands."""
        if event.asked == self._estimates.asked:
            self._estimates.given_up = True
            if self._step is not None:
                self._step.give_up(event.sentence)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Keys that would do nothing are not offered."""
        if action in ("zoom", "run", "dismiss_run") and isinstance(self.focused, Input):
            return False  # they are typed into the field
        if action == "run":
            runs, run = self._board.runs if self._board else (), find_run(self._board, self._keys)
            return len(runs) > (run is not None)
        if action == "dismiss_run":
            return find_run(self._board, self._keys) is not None
        if action in ("other_pane", "forget"):
            return self._attachment is not None and self._pid is not None
        return action not in ("step", "zoom") or self._pid is not None

    def action_zoom(self, by: int) -> None:
        """Show a longer or a shorter stretch of time."""
        self.query_one(RankView).zoom(by)

    def action_run(self, by: int) -> None:
        """Show the next run, or the one before."""
        runs, run = self._board.runs if self._board else (), find_run(self._board, self._keys)
        if runs:
            self._open(runs[(runs.index(run) + by if run in runs else 0) % len(runs)].pids)

    def action_dismiss_run(self) -> None:
        """Follow this run no longer, whether it has ended or not."""
        run = find_run(self._board, self._keys)
        if run is not None:
            self._watchlist.dismiss_runs(run.pids)
            self._reader.drop(run.pids)
            self._board = self._watchlist.rebuild_board()
            self.notify(f"{run.job.label} is followed no longer.", markup=False)
            if self._board and self._board.runs:
                self._open(self._board.runs[0].pids)
            else:
                self.app.pop_screen()

    def action_other_pane(self) -> None:
        """Go to the settings, or back to the run."""
        settings = self.query_one("#settings")
        there = self.focused is not None and settings in self.focused.ancestors
        self._focus_on(None if there else self.query_one(JobForm))

    def action_forget(self) -> None:
        """Forget what the user has filled in for this command line, and take what is read."""
        attachment = self._attachment
        if attachment is not None:
            self._given.forget()
            self._watchlist.dismiss_runs(self._keys)
            self.notify("Forgotten: what you had filled in for this command line.")
            self._read(attachment.pid, attachment.start_time, recall=False)

    def action_step(self) -> None:
        """Draw the job's training step."""
        row = self.query_one(FollowedRun).drawn
        budget = self._budget or (row.budget if row else None)
        if budget is None:
            self.notify("There is no budget for this process yet, so there is no step to draw.", severity="warning")
            return
        self._step = StepScreen(
            budget,
            card_bytes=row.gpu.total_bytes if row else None,
            waiting=self._estimates.is_waiting(budget),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
        )
        self.app.push_screen(self._step, lambda _: setattr(self, "_step", None))

    def _open(self, keys: tuple[ProcessKey, ...]) -> None:
        """Show this run, and read the first of its processes."""
        self._keys, self._attachment, self._budget = keys, None, None
        self.query_one("#settings").remove_children()
        self._ask_for_process(asked=False)
        self._doubt(None)
        self._show_run()
        self._read(*self._keys[0])

    def action_choose(self, failure: str = "") -> None:
        """Ask for another process, and say why there is none yet."""
        self._pid, self._keys, self._attachment = None, (), None
        chooser = self.query_one(PidChooser)
        self._ask_for_process(asked=True)
        self._show_run()
        if self._board:
            chooser.show_board(self._board)
        chooser.fail(failure)
        chooser.query_one(Input).focus()
        self.refresh_bindings()

    def _refuse(self, sentence: str) -> None:
        """The process cannot be read: what is seen of it from outside is shown, or another one asked for."""
        if not self.query_one(FollowedRun).rows:
            self.action_choose(sentence)
            return
        self.add_class("-refused")
        self._doubt(sentence)
        self._focus_on(None)

    def _ask_for_process(self, *, asked: bool) -> None:
        self.query_one(PidChooser).display = asked
        self.query_one(FollowedRun).display = not asked

    def _focus_on(self, form: JobForm | None) -> None:
        """The form, or the run; where there is no room for both, only one is to be seen."""
        self.set_class(form is not None, "-asking")
        (form.query("Input, Choice").first() if form else self.query_one(RankTable)).focus()
        self.refresh_bindings()

    def _read(self, pid: int, start_time: float | None, *, recall: bool = True) -> None:
        self._pid = pid
        self._estimates.renew()
        if is_only_in_recording(self._board, pid):
            known = find_run(self._board, self._keys) is not None  # the recording says what it runs
            sentence = f"Process {pid} is in the recording that is played, not on this machine."
            self.post_message(self.Attached(pid, "" if known else sentence))
            return
        on_gpu = {row.process.pid for row in self._board.processes} if self._board else None
        self._reader.read(pid, start_time, on_gpu=on_gpu or None, recall=recall)

    def _ask(self) -> None:
        attachment = self._attachment
        if attachment is None:  # of a run that is shown no more
            return
        form = self.query_one(JobForm)
        if job := form.job:
            self._estimates.ask(job, attachment)
        else:
            self._doubt(form.wrong)

    def _post(self, message: Message) -> None:
        """From another thread."""
        if not self._gone.is_set():
            self.post_message(message)

    def _say_remembered(self, sentence: str) -> None:
        """On the thread that remembers."""
        if not self._gone.is_set():
            self.app.call_from_thread(self.notify, sentence, severity="warning", markup=False)

    def _doubt(self, sentence: str | None) -> None:
        kept = " Until then the last settings count." if self._budget and sentence else ""
        self.query_one(FollowedRun).doubt(f"{sentence}{kept}" if sentence else None)

    @on(Resize)
    def _show_run(self) -> None:
        """Draw the runs' names, and how the one that is shown stands."""
        board = self._board
        self._keys = with_start_times(board, self._keys)
        title = run_tabs(board.runs if board else (), self._keys, self.size.width - 2)
        self.query_one("#title", StaticLines).show(title)
        if self._keys:
            self.query_one(FollowedRun).show(board, self._keys, self._attachment, self._budget)
