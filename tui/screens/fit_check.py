"""Fit check: settings as a form, and beside it whether that job would fit, while it is being typed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Button, Footer, Label

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import CancelledError, VramtopError
from vramtop.estimator.job import Job
from vramtop.monitor.board import Board
from vramtop.monitor.watch import Watchlist

from ..job_fields import model_names
from ..newest import Newest
from ..widgets.job_form import JobForm
from ..widgets.machine import MachinePicker
from ..widgets.verdict import VerdictView
from .step import StepScreen

if TYPE_CHECKING:
    from textual.timer import Timer

Estimate = Callable[[Job], Budget]

_TYPING_SECONDS = 0.15
"""So long after the last key the job is estimated."""
_THINKING_SECONDS = 0.8
"""So long after the last key the slower estimate begins."""


class FitCheckScreen(Screen[None]):
    """Settings on the left, the verdict on the right.

    Args:
        watchlist: takes the job when it is pinned as pending.
        estimate: a quick estimate; called on a thread of its own.
        refine: a better and slower one, likewise; None: there is none.
        initial: the settings to begin with.
    """

    TITLE = "Fit check"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("f2", "pin", "Pin as pending", key_display="F2"),
        Binding("p", "pin", "Pin", show=False),
        Binding("f3", "focus_machine", "GPUs", key_display="F3"),
        Binding("f4", "focus_form", "Settings", key_display="F4"),
        Binding("f5", "step", "Step", key_display="F5"),
        Binding("t", "step", "Step", show=False),
        Binding("f12", "preflight", "Preflight", key_display="F12"),
        Binding("c", "preflight", "Preflight", show=False),
    ]
    DEFAULT_CSS = """
    FitCheckScreen #title { width: 1fr; padding: 0 1; text-style: bold; background: $panel; }
    FitCheckScreen #halves { height: 1fr; layout: horizontal; }
    FitCheckScreen #form { width: 2fr; max-width: 62; border-right: vkey $foreground 20%; }
    FitCheckScreen #verdict { width: 3fr; }
    FitCheckScreen.-narrow #halves { layout: vertical; }
    FitCheckScreen.-narrow #form {
        width: 1fr; max-width: 100%; height: 2fr; border-right: none; border-bottom: hkey $foreground 20%;
    }
    FitCheckScreen.-narrow #verdict { width: 1fr; height: 3fr; }
    FitCheckScreen #bar { height: 1; }
    FitCheckScreen #bar Button { margin: 0 1; }
    """

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
        estimate: Estimate,
        refine: Estimate | None = None,
        initial: Job | None = None,
    ) -> None:
        super().__init__()
        self._watchlist = watchlist
        self._estimate = estimate
        self._refine = refine
        self._initial = initial or Job()
        self._quick, self._deep = Newest("fit check"), Newest("fit check, refined")
        self._asked = 0
        self._edited = "model.id"
        self._step: StepScreen | None = None
        self._unrefined: str | None = None
        """Why there is no better estimate of the newest settings."""
        self._due: list[Timer] = []
        self._gone = threading.Event()

    def compose(self) -> ComposeResult:
        """The form, the verdict, and what can be done with it."""
        yield Label("Fit check: would this job fit?", id="title")
        with Horizontal(id="halves"):
            yield JobForm(self._initial, models=model_names(), id="form")
            yield VerdictView(id="verdict")
        with Horizontal(id="bar"):
            yield MachinePicker(chosen=self._initial.target.gpu, id="machine")
            yield Button("Pin as pending", id="pin", compact=True, variant="primary")
        yield Footer()

    def on_mount(self) -> None:
        """Estimate what the form begins with."""
        self.query_one("#row-model-id Input").focus()
        self._ask()

    def on_unmount(self) -> None:
        """Nobody waits for answers any more."""
        self._gone.set()
        self._deep.interrupt()

    def show_board(self, board: Board) -> None:
        """Hold the job against the GPUs as they are now."""
        self.query_one(MachinePicker).show_board(board)
        self._judge()

    @property
    def job(self) -> Job | None:
        """The job as form and machine have it; None while something is wrong."""
        job = self.query_one(JobForm).job
        return self.query_one(MachinePicker).aimed(job) if job else None

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again once the typing pauses."""
        self._edited = event.key
        self._ask_soon()

    @on(MachinePicker.Picked)
    def machine_picked(self) -> None:
        """Hold the budget against other cards at once, and estimate for them: a card's libraries count too."""
        self._judge()
        self._ask_soon()

    @on(Estimated)
    def estimated(self, event: Estimated) -> None:
        """Show the newest answer; older ones come too late."""
        if event.asked != self._asked:
            return
        form = self.query_one(JobForm)
        if isinstance(event.answer, str):
            self.query_one(VerdictView).doubt(event.answer)
            form.complain(self._edited, event.answer)
            return
        form.settle()
        view = self.query_one(VerdictView)
        view.take(event.answer)
        if self._step is not None and view.budget is not None:
            self._step.take(view.budget, waiting=self._is_waiting(view.budget))
        self._judge()

    @on(NotRefined)
    def not_refined(self, event: NotRefined) -> None:
        """The quick answer stands."""
        if event.asked == self._asked:
            self._unrefined = event.sentence
            if self._step is not None:
                self._step.give_up(event.sentence)

    @on(Button.Pressed, "#pin")
    def action_pin(self) -> None:
        """Put the job among those that wait, unless it makes no sense."""
        verdict = self.query_one(VerdictView)
        job, budget = self.job, verdict.budget
        if job is None or budget is None or verdict.doubtful:
            self.notify("There is no budget for these settings yet, so there is nothing to pin.", severity="warning")
            return
        self._watchlist.pend(job)
        if budget.method != "formula" and budget.job == job:
            self._watchlist.refine(budget)
        self.notify(f"{job.label} waits: the dashboard shows whether it fits; x there unpins it.", markup=False)

    def action_step(self) -> None:
        """Draw the job's training step."""
        view = self.query_one(VerdictView)
        if view.budget is None or view.doubtful:
            self.notify("There is no budget for these settings yet, so there is no step to draw.", severity="warning")
            return
        rooms = self.query_one(MachinePicker).rooms(view.budget.job.parallel.world_size)
        self._step = StepScreen(
            view.budget,
            card_bytes=max((room.total_bytes for room in rooms if room.total_bytes), default=None),
            waiting=self._is_waiting(view.budget),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
        )
        if self._unrefined:
            self._step.give_up(self._unrefined)
        self.app.push_screen(self._step, lambda _: self._forget_step())

    def action_preflight(self) -> None:
        """Look whether all that the job needs is there."""
        from .preflight import open_preflight  # not before it is asked for: it brings all the checks

        job, picker = self.job, self.query_one(MachinePicker)
        rooms = picker.rooms(job.parallel.world_size) if job else ()
        open_preflight(self, job, rooms=rooms, budget=self.query_one(VerdictView).budget)

    def _forget_step(self) -> None:
        self._step = None

    def _is_waiting(self, budget: Budget) -> bool:
        return self._refine is not None and budget.method == "formula" and self._unrefined is None

    def action_focus_machine(self) -> None:
        """Go to the choice of cards."""
        self.query_one(MachinePicker).query_one("Select").focus()

    def action_focus_form(self) -> None:
        """Go to the first setting."""
        self.query_one("#row-model-id Input").focus()

    def _ask_soon(self) -> None:
        self._asked += 1
        self._unrefined = None
        self._deep.interrupt()  # nobody asks for the settings before this edit any more
        for timer in self._due:
            timer.stop()
        self._due = [self.set_timer(_TYPING_SECONDS, self._ask)]

    def _ask(self) -> None:
        form, view = self.query_one(JobForm), self.query_one(VerdictView)
        job = self.job
        if job is None:
            view.doubt(form.wrong or "")
            return
        if job.model.id is None and job.model.config is None:
            view.doubt("type a model: a built-in name, one from the Hugging Face cache, or a folder with a config.json")
            return
        asked = self._asked
        self._quick.submit(lambda: self._answer(self._estimate, job, asked))
        if self._refine is not None:
            self._due.append(self.set_timer(_THINKING_SECONDS, lambda: self._ask_deep(job, asked)))

    def _ask_deep(self, job: Job, asked: int) -> None:
        refine = self._refine
        if refine is not None and asked == self._asked:
            self._deep.submit(lambda: self._answer(refine, job, asked))

    def _answer(self, estimate: Estimate, job: Job, asked: int) -> None:
        """Runs on a thread of its own."""
        answer: Budget | str
        try:
            answer = estimate(job)
        except VramtopError as error:
            if estimate is self._refine:
                if not isinstance(error, CancelledError) and not self._gone.is_set():
                    self.post_message(self.NotRefined(asked, error.message))
                return
            answer = error.message
        if not self._gone.is_set():
            self.post_message(self.Estimated(asked, answer))

    def _judge(self) -> None:
        machine, view = self.query_one(MachinePicker), self.query_one(VerdictView)
        ranks = view.budget.job.parallel.world_size if view.budget else 1
        view.judge(machine.rooms(ranks))
