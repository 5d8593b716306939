"""Fit check: settings as a form, and beside it whether that job would fit, while it is being typed."""

import shlex
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Button, Label

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import with_changes
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist

from ...background.latest_only_task import LatestOnlyTask
from ...job.changed_settings import changed_settings_text
from ...job.copy_dialog import CopiedTextScreen
from ...job.form_fields import cached_models, model_names
from ...job.form_inputs import ModelInput
from ...job.job_form import JobForm
from ...job.open_dialog import OpenedJob, OpenJobScreen
from ...job.save_dialog import open_save_dialog
from ...widgets.keys_line import KeysLine
from ..preflight.preflight_rows import PreflightMark
from ..step.screen import StepScreen
from .capacity import Capacity, capacity_fingerprint
from .fit_estimates import Estimate, Vary
from .fit_keys import FIT_KEYS, FIT_LAYOUT
from .fit_messages import Advised, Estimated, ModelsFound, NotRefined, checks_that_post
from .gpu_picker import GpuPicker
from .suggestions import Suggestions
from .undo_history import UndoHistory
from .verdict import VerdictView
from .what_if_screen import WhatIfScreen

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.monitor.host.host_memory import HostRam

    from .sweep import Axis

_COMPLAINING_SECONDS = 0.3
"""So long after the last key it is said what is wrong: half a name is no mistake."""
_THINKING_SECONDS = 0.8
"""So long after the last key the slower estimate begins."""
_NO_BUDGET = "There is no budget for these settings yet, so there is nothing to"
_NO_MODEL = "type a model: a name, hub id or folder; F3 opens a file"


class FitCheckScreen(Screen[None]):
    """Settings on the left, the verdict on the right.

    Args:
        watchlist: takes the job when it is pinned as pending.
        estimate: a quick estimate; called on a thread of its own.
        refine: a better and slower one, likewise; None: there is none.
        vary: gives a still quicker one for jobs of one model, for searches; ``estimate`` itself when left out.
        initial: the settings to begin with.
        pinned: the job that waits and is looked at again: pinning replaces it.
        leave: told of the job when the screen closes.
    """

    TITLE = "Fit check"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = FIT_KEYS
    DEFAULT_CSS = FIT_LAYOUT

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        estimate: Estimate,
        refine: Estimate | None = None,
        vary: Vary | None = None,
        initial: Job | None = None,
        pinned: Job | None = None,
        leave: Callable[[Job], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._watchlist = watchlist
        self._initial = initial or Job()
        self._pinned = pinned
        self._leave = leave
        self._opened: OpenedJob | None = None
        self._checks = checks_that_post(self._post, estimate, refine, vary or (lambda _: estimate))
        self._names = LatestOnlyTask("models in the cache")
        self._past = UndoHistory(self._initial)
        self._edited = "model.id"
        self._judge = Capacity()
        self._host: HostRam | None = None
        self._step: StepScreen | None = None
        self._what_if: WhatIfScreen | None = None
        self._due: list[Timer] = []
        self._gone = threading.Event()

    def compose(self) -> ComposeResult:
        """The form, the verdict, and what can be done with it."""
        yield Label("Fit check: would this job fit?", id="title", markup=False)
        with Horizontal(id="halves"):
            with Vertical(id="settings"):
                yield JobForm(self._initial, models=model_names(), id="form")
            yield VerdictView(id="verdict")
        with Horizontal(id="bar"):
            yield GpuPicker(chosen=self._initial.target.gpu, id="machine")
            yield PreflightMark(id="preflight-mark")
            yield Button("Pin as pending", id="pin", compact=True, variant="primary")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Estimate what the form begins with."""
        self._focus_form()
        self._ask()
        self._names.submit(lambda: self._post(ModelsFound(cached_models())))

    def on_unmount(self) -> None:
        """Nobody waits for answers any more."""
        self._gone.set()
        self._checks.renew()
        self._leave(self._past.now)

    def show_board(self, board: Board) -> None:
        """Hold the job against the GPUs as they are now."""
        self._host = self._watchlist.host_memory(board.snapshot)
        self.query_one(GpuPicker).show_board(board)
        self._hold()

    @property
    def job(self) -> Job | None:
        """The job as form and machine have it; None while something is wrong."""
        job = self.query_one(JobForm).job
        return self.query_one(GpuPicker).aimed(job) if job else None

    @on(ModelsFound)
    def models_found(self, event: ModelsFound) -> None:
        """Suggest them too."""
        self.query_one(JobForm).offer(event.names)

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again, at once."""
        self._edited = event.key or self._edited
        if (job := self.query_one(JobForm).job) is not None:
            could = self._past.can_undo
            self._past.take(job, event.key or None)
            if self._past.can_undo != could:  # the footer is slow to draw
                self.refresh_bindings()
        self._ask()

    @on(GpuPicker.Picked)
    def machine_picked(self) -> None:
        """Hold the budget against other cards at once, and estimate for them: a card's libraries count too."""
        self._hold()
        self._ask()

    @on(Estimated)
    def estimated(self, event: Estimated) -> None:
        """Show the newest answer; older ones come too late."""
        if event.asked != self._checks.asked:
            return
        if isinstance(event.answer, str):
            self._complain_soon(event.answer)
            return
        self.query_one(JobForm).settle()
        view = self.query_one(VerdictView)
        view.take(event.answer, waiting=self._checks.is_waiting(event.answer))
        if self._step is not None and view.budget is not None:
            self._step.take(view.budget, waiting=self._checks.is_waiting(view.budget))
        self._hold(anew=True)

    @on(NotRefined)
    def not_refined(self, event: NotRefined) -> None:
        """The quick answer stands."""
        if event.asked == self._checks.asked:
            self._checks.given_up = event.sentence
            self.query_one(VerdictView).give_up()
            if self._step is not None:
                self._step.give_up(event.sentence)

    @on(Advised)
    def advised(self, event: Advised) -> None:
        """Show what could be changed."""
        if event.asked == self._checks.asked:
            self.query_one(VerdictView).advise(event.advice)
            if self._what_if is not None and event.advice.sweeps:
                self._what_if.take(event.advice.sweeps)

    @on(Suggestions.Applied)
    def applied(self, event: Suggestions.Applied) -> None:
        """Take a suggestion over into the form."""
        self._set(event.suggestion.changes)

    @on(ModelInput.JobPasted)
    def pasted(self, event: ModelInput.JobPasted) -> None:
        """A launch line or a path in the model's field is opened."""
        self.action_open(event.text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Nothing to undo, no such key."""
        return action != "undo" or self._past.can_undo

    @on(Button.Pressed, "#pin")
    def action_pin(self) -> None:
        """Put the job among those that wait, unless it makes no sense."""
        job, budget = self.job, self._sound_budget("pin")
        if job is None or budget is None:
            return
        if self._pinned is not None and self._pinned != job:
            self._watchlist.remove_pending(self._pinned)
        self._pinned = job
        self._watchlist.add_pending(job)
        if budget.method != "formula" and budget.job == job:
            self._watchlist.set_budget(budget)
        self.notify(f"{job.label} waits: the dashboard shows whether it fits; x there unpins it.", markup=False)

    def action_apply(self, number: int) -> None:
        """Apply the suggestion with this number."""
        suggestions = self.query_one(Suggestions)
        if number <= len(suggestions.suggestions):
            suggestions.apply(number)
        else:
            self.notify(f"There is no suggestion {number}.", severity="warning")

    def action_undo(self) -> None:
        """Take the last change back: a suggestion, a file that was opened, or the edits of one field."""
        if (job := self._past.undo()) is not None:
            self.query_one(JobForm).fill(job)

    def action_open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        self.app.push_screen(OpenJobScreen(text), self._take_opened)

    def action_save(self) -> None:
        """Write the job to a file."""
        job = self.job
        if job is None or (not job.model.id and job.model.config is None):
            self.notify(f"There is no job to save: {self._why_not()}", severity="warning", markup=False)
            return
        open_save_dialog(self, job, self._opened.loaded.file if self._opened else None)

    def action_copy(self) -> None:
        """Copy what was changed, as vramtop's flags and as edits of the tool's own settings."""
        job = self.job
        if job is None:
            self.notify(f"There is no job to copy: {self._why_not()}", severity="warning", markup=False)
            return
        opened = self._opened
        source, given = (opened.loaded, opened.text) if opened else (None, "")
        text = changed_settings_text(job, source, given, gpus=self.query_one(GpuPicker).elsewhere)
        self.app.copy_to_clipboard(text)
        self.app.push_screen(CopiedTextScreen(text, "The changed settings"))

    def action_what_if(self) -> None:
        """Draw the need over the micro-batch or the sequence length."""
        budget, advice = self._sound_budget("plot"), self.query_one(VerdictView).advice
        if budget is None:
            return
        if advice is None or not all(swept.points for swept in advice.sweeps) or not advice.sweeps:
            self.notify("The quick estimate has no rule for this model, so there is no plot.", severity="warning")
            return
        self._what_if = WhatIfScreen(advice.sweeps, label=budget.job.label, ascii_only=self._ascii_only)
        self.app.push_screen(self._what_if, self._take_value)

    def action_step(self) -> None:
        """Draw the job's training step."""
        budget = self._sound_budget("draw")
        if budget is None:
            return
        self._step = StepScreen(
            budget,
            card_bytes=self._judge.limits(budget).card_bytes,
            waiting=self._checks.is_waiting(budget),
            ascii_only=self._ascii_only,
        )
        if self._checks.given_up:
            self._step.give_up(self._checks.given_up)
        self.app.push_screen(self._step, lambda _: self._forget_step())

    def action_preflight(self) -> None:
        """Look whether all that the job needs is there."""
        from ..preflight.screen import open_preflight  # not before it is asked for: it brings all the checks

        job, picker = self.job, self.query_one(GpuPicker)
        rooms = picker.rooms(job.parallel.world_size) if job else ()
        opened = self._opened  # of a launch line the Python and the variables that it names count too
        launch = shlex.split(opened.text) if opened and opened.loaded.place == "command line" else None
        open_preflight(self, job, rooms=rooms, budget=self.query_one(VerdictView).budget, launch=launch)

    def action_focus_machine(self) -> None:
        """Go to the choice of cards."""
        self.query_one(GpuPicker).query_one("Select").focus()

    def action_other_pane(self) -> None:
        """Go to the suggestions, or where there are none to the verdict; from there to the settings."""
        view, suggestions = self.query_one(VerdictView), self.query_one(Suggestions)
        if self.focused is not None and view in self.focused.ancestors_with_self:
            self._focus_form()
        else:
            (suggestions if suggestions.display else view).focus()

    async def _take_opened(self, opened: OpenedJob | None) -> None:
        """Show what was read in a form of its own, with where each value comes from."""
        if opened is None:
            return
        source = opened.loaded
        self._opened, self._pinned = opened, None
        settings = self.query_one("#settings")
        await settings.remove_children()
        form = JobForm(source.job, origins=source.origins, missing=source.missing, models=model_names(), id="form")
        await settings.mount(form)
        self._past.take(source.job)
        self.query_one(GpuPicker).choose(source.job.target.gpu)
        self.query_one("#title", Label).update(f"Fit check: would {source.job.label} fit?")
        self.query_one(VerdictView).note(source.notes)
        self._edited = source.missing[0] if source.missing else "model.id"
        if source.missing:
            self._focus_form()
        else:  # nothing to be typed: a digit there would take the place of what was read
            self.query_one(VerdictView).focus()
        self._ask()

    def _take_value(self, taken: "tuple[Axis, int] | None") -> None:
        self._what_if = None
        if taken is not None:
            self._set({taken[0]: taken[1]})

    def _set(self, changes: dict[str, object]) -> None:
        """Set these keys in the form, as one step."""
        form = self.query_one(JobForm)
        if form.job is None:
            self.notify(f"Not applied: {form.wrong}", severity="warning", markup=False)
            return
        try:
            form.fill(with_changes(form.job, changes))
        except InputError as error:
            self.notify(error.message, severity="warning", markup=False)

    @property
    def _ascii_only(self) -> bool:
        return bool(getattr(self.app, "ascii_only", False))

    def _forget_step(self) -> None:
        self._step = None

    def _focus_form(self) -> None:
        self.query_one(JobForm).query("Input, Choice").first().focus()

    def _sound_budget(self, what: str) -> Budget | None:
        """The budget of the settings as they are; where there is none, the user is told why nothing happens."""
        view, job = self.query_one(VerdictView), self.job
        if view.budget is None or view.doubtful or view.budget.job != job:
            self.notify(f"{_NO_BUDGET} {what}: {self._why_not()}", severity="warning", markup=False)
            return None
        return view.budget

    def _why_not(self) -> str:
        """Why there is no job or no budget, in a sentence's end."""
        wrong = self.query_one(JobForm).wrong
        job = None if wrong else self.job
        if job is not None and job.model.id is None and job.model.config is None:
            return _NO_MODEL
        return wrong or self.query_one(VerdictView).doubts or "it is being worked out"

    def _ask(self) -> None:
        """Ask for a budget of the settings as they are."""
        self._checks.renew()
        self.query_one(PreflightMark).show_job(self.job)
        for timer in self._due:
            timer.stop()
        self._due = []
        form, view = self.query_one(JobForm), self.query_one(VerdictView)
        job = self.job
        if job is None:
            view.doubt(form.wrong or "")
        elif job.model.id is None and job.model.config is None:
            view.doubt(_NO_MODEL)
        else:
            asked = self._checks.asked
            self._checks.ask(job)
            self._due.append(self.set_timer(_THINKING_SECONDS, lambda: self._checks.ask_deep(job, asked)))

    def _complain_soon(self, sentence: str) -> None:
        key = self._edited

        def complain() -> None:
            self.query_one(VerdictView).doubt(sentence)
            self.query_one(JobForm).complain(key, sentence)

        self._due.append(self.set_timer(_COMPLAINING_SECONDS, complain))

    def _hold(self, *, anew: bool = False) -> None:
        """Hold the budget against the GPUs, and look for advice where that is old.

        Args:
            anew: the budget is a new one.
        """
        machine, view = self.query_one(GpuPicker), self.query_one(VerdictView)
        budget = view.budget
        rooms = machine.rooms(budget.job.parallel.world_size if budget else 1, pinned=self._pinned)
        here = budget is None or budget.job.target.gpu is None
        before, self._judge = self._judge, Capacity(rooms=rooms, host=self._host if here else None)
        view.judge(self._judge)
        if budget is None or view.doubtful:
            return
        offered = view.advice.suggestions if view.advice else ()
        if anew or capacity_fingerprint(offered, budget, before) != capacity_fingerprint(offered, budget, self._judge):
            self.call_after_refresh(self._advise, self._checks.asked)

    def _advise(self, asked: int) -> None:
        """Look for advice once the verdict is on the screen: two threads of Python share one processor."""
        budget = self.query_one(VerdictView).budget
        if budget is not None and asked == self._checks.asked:
            self._checks.advise(budget, self._judge)

    def _post(self, message: Message) -> None:
        """From any thread."""
        if not self._gone.is_set():
            self.post_message(message)
