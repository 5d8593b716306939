"""The fit check screen: a job's settings as a form, and beside it whether that job would fit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Button, Label

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import Job
from vramtop.monitor.board import Board, Watchlist

from ...job import CopiedTextScreen, LoadedJob, OpenedJob, OpenJobScreen, open_save_dialog
from ...job.form import JobForm, ModelInput
from ...widgets import KeysLine
from ..preflight import PreflightMark
from ..step import LiveStepScreen
from ..what_if import WhatIfScreen
from .advice import Advice, EstimateJob, QuickEstimatorFor
from .estimates import FitEstimates
from .gpu_picker import GpuPicker
from .keys import FIT_KEYS, FIT_LAYOUT
from .session import FitSession
from .settings_pane import SettingsPane
from .suggestions import Suggestions
from .verdict import VerdictView

if TYPE_CHECKING:
    from ..what_if import Axis

_NO_BUDGET = "There is no budget for these settings yet, so there is nothing to"
_NO_MODEL = "type a model: a name, hub id or folder; F3 opens a file"


class FitCheckScreen(Screen[None]):
    """The settings at the left, the verdict at the right.

    Args:
        watchlist: receives the job when it is pinned as pending.
        estimate: a quick estimate; called off the UI thread.
        refine: a better and slower one, likewise; None: there is none.
        quick_estimator: makes quicker estimates for searches; ``estimate`` itself is used when left out.
        initial: the job to start from.
        pinned: the pending job that is being edited; None: the job is not pending.
        on_close: receives the edited job when the screen closes.
    """

    TITLE = "Fit check"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = FIT_KEYS
    DEFAULT_CSS = FIT_LAYOUT

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        estimate: EstimateJob,
        refine: EstimateJob | None = None,
        quick_estimator: QuickEstimatorFor | None = None,
        initial: Job | None = None,
        pinned: Job | None = None,
        on_close: Callable[[Job], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._session = FitSession(watchlist, initial or Job(), pinned)
        self._on_close = on_close
        self._step = LiveStepScreen(self)
        self._estimates = FitEstimates(
            self,
            estimate,
            refine,
            quick_estimator or (lambda _: estimate),
            on_budget=self._show_budget,
            on_error=self._show_error,
            on_not_refined=self._show_not_refined,
            on_advice=self._show_advice,
        )
        self._what_if_screen: WhatIfScreen | None = None

    def compose(self) -> ComposeResult:
        """The form, the verdict, the GPUs, and the preflight mark."""
        initial = self._session.initial
        yield Label("Fit check: would this job fit?", id="title", markup=False)
        with Horizontal(id="halves"):
            yield SettingsPane(initial, on_read=self._show_read_again, on_error=self._show_error, id="settings")
            yield VerdictView(id="verdict")
        with Horizontal(id="bar"):
            yield GpuPicker(chosen=initial.target.gpu, id="gpus")
            yield PreflightMark(id="preflight-mark")
            yield Button("Pin as pending", id="pin", compact=True, variant="primary")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Estimate the initial job."""
        self._pane.focus_form()
        self._estimate()

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._estimates.cancel()
        self._on_close(self._session.history.current)

    def show_board(self, board: Board) -> None:
        """Compare the job with the GPUs as they are now."""
        self._session.set_board(board)
        self.query_one(GpuPicker).show_board(board)
        self._compare()

    @property
    def job(self) -> Job | None:
        """The job with the chosen GPU as its target; None while a setting is invalid."""
        job = self._pane.form.job
        return self.query_one(GpuPicker).with_target(job) if job else None

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate the edited job at once; with another model, what was opened is read again first."""
        self._pane.set_edited_field(event.key)
        form, session = self._pane.form, self._session
        job, history = form.job, session.history
        if job is not None and history.record(job, event.key or None, edited=form.edited):
            self.refresh_bindings()  # only now that undo is enabled: drawing the footer is slow
        if self._pane.read_again(session.read_again):
            self._estimates.cancel()
            self.query_one(VerdictView).show_problem(
                f"reading what you opened again, with {form.state.model}", mark="…"
            )
        else:
            self._estimate()

    @on(GpuPicker.Changed)
    def gpus_changed(self) -> None:
        """Compare the budget with the new GPUs, and estimate again: the libraries depend on the GPU."""
        self._compare()
        if not self._pane.is_being_read:
            self._estimate()

    @on(Suggestions.Applied)
    def suggestion_applied(self, event: Suggestions.Applied) -> None:
        """Copy a suggestion into the form."""
        self._change_settings(event.suggestion.changes)

    @on(ModelInput.JobPasted)
    def text_pasted(self, event: ModelInput.JobPasted) -> None:
        """Open the launch line or the path that was pasted into the model field."""
        self.action_open(event.text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable undo while the history is empty."""
        return action != "undo" or self._session.history.can_undo

    @on(Button.Pressed, "#pin")
    def action_pin(self) -> None:
        """Make the job pending, unless its settings are invalid."""
        job, budget = self.job, self._current_budget("pin")
        if job is not None and budget is not None:
            self._session.pin(job, budget)
            self.notify(
                f"{job.label} is pending: the dashboard shows whether it fits; x there unpins it.", markup=False
            )

    def action_apply(self, number: int) -> None:
        """Apply the suggestion with this number."""
        suggestions = self.query_one(Suggestions)
        if number <= len(suggestions.suggestions):
            suggestions.apply(number)
        else:
            self.notify(f"There is no suggestion {number}.", severity="warning")

    def action_undo(self) -> None:
        """Undo the last change: a suggestion, an opened file, or the edits of one field."""
        history = self._session.history
        if (job := history.undo()) is not None:
            self._pane.form.fill(job, history.edited)

    def action_open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        self.app.push_screen(OpenJobScreen(text), self._show_opened)

    def action_save(self) -> None:
        """Save the job to a file."""
        job = self.job
        if job is None or not _has_model(job):
            self.notify(f"There is no job to save: {self._why_not()}", severity="warning", markup=False)
        else:
            open_save_dialog(self, job, self._session.file)

    def action_copy(self) -> None:
        """Copy the changed settings to the clipboard, and show them."""
        job = self.job
        if job is None:
            self.notify(f"There is no job to copy: {self._why_not()}", severity="warning", markup=False)
            return
        text = self._session.changes_text(job, self.query_one(GpuPicker).catalogue_count)
        self.app.copy_to_clipboard(text)
        self.app.push_screen(CopiedTextScreen(text, "The changed settings"))

    def action_what_if(self) -> None:
        """Plot memory over the micro-batch or the sequence length."""
        budget, advice = self._current_budget("plot"), self.query_one(VerdictView).advice
        if budget is None:
            return
        if advice is None or not advice.can_plot:
            self.notify("The quick estimate has no rule for this model, so there is no plot.", severity="warning")
            return
        self._what_if_screen = WhatIfScreen(advice.sweeps, label=budget.job.label)
        self.app.push_screen(self._what_if_screen, self._apply_value)

    def action_step(self) -> None:
        """Open the step screen on the job."""
        if budget := self._current_budget("draw"):
            self._step.open(budget, self._estimates, gpu_bytes=self._session.capacity.limits(budget).gpu_bytes)

    def action_preflight(self) -> None:
        """Open the preflight screen on the job."""
        from ..preflight import open_preflight  # imports all the checks

        job = self.job
        devices = self.query_one(GpuPicker).devices(job.parallel.world_size) if job else ()
        budget = self.query_one(VerdictView).budget
        open_preflight(self, job, devices=devices, budget=budget, launch=self._session.launch)

    def action_choose_gpus(self) -> None:
        """Move the focus to the choice of GPUs."""
        self.query_one(GpuPicker).query_one("Select").focus()

    def action_other_pane(self) -> None:
        """Move the focus to the suggestions, or to the verdict if there are none; from there to the settings."""
        view, suggestions = self.query_one(VerdictView), self.query_one(Suggestions)
        if self.focused is not None and view in self.focused.ancestors_with_self:
            self._pane.focus_form()
        else:
            (suggestions if suggestions.display else view).focus()

    def _estimate(self) -> None:
        """Request a budget for the settings as they are now, or say why there is none."""
        self._estimates.cancel()
        job, view = self.job, self.query_one(VerdictView)
        self.query_one(PreflightMark).show_job(job)
        if job is None:
            view.show_problem(self._pane.form.problem or "")
        elif not _has_model(job):
            view.show_problem(_NO_MODEL)
        else:
            self._estimates.start(job)

    def _show_budget(self, budget: Budget) -> None:
        self._pane.form.clear_errors()
        view = self.query_one(VerdictView)
        view.set_budget(budget, refining=self._estimates.may_refine(budget))
        self._step.update(view.budget or budget, self._estimates)
        self._compare(is_new_budget=True)

    def _show_not_refined(self, reason: str) -> None:
        self.query_one(VerdictView).keep_quick_budget()
        self._step.show_not_refined(reason)

    def _show_error(self, sentence: str) -> None:
        self.query_one(VerdictView).show_problem(sentence)
        self._pane.show_error(sentence)

    def _show_advice(self, advice: Advice) -> None:
        self.query_one(VerdictView).set_advice(advice)
        if self._what_if_screen is not None and advice.sweeps:
            self._what_if_screen.show_sweeps(advice.sweeps)

    def _compare(self, *, is_new_budget: bool = False) -> None:
        """Compare the budget with the GPUs, and search for advice again if it may have changed."""
        picker, view, session = self.query_one(GpuPicker), self.query_one(VerdictView), self._session
        budget = view.budget
        devices = picker.devices(budget.job.parallel.world_size if budget else 1, pinned=session.pinned)
        is_outdated = session.set_devices(devices, budget, view.advice)
        view.set_capacity(session.capacity)
        if not view.is_invalid and (is_new_budget or is_outdated):
            self.call_after_refresh(self._search_advice)

    def _search_advice(self) -> None:
        """Search for advice once the verdict is drawn: Python threads share one processor."""
        budget = self.query_one(VerdictView).budget
        if budget is not None and budget.job == self.job:
            self._estimates.search_advice(budget, self._session.capacity)

    async def _show_opened(self, opened: OpenedJob | None) -> None:
        """Show an opened job in a new form, with the place where each value was read."""
        if opened is None:
            return
        loaded = opened.loaded
        self._session.open(opened)
        view = self.query_one(VerdictView)
        await self._pane.show_source(loaded)
        self.query_one(GpuPicker).choose(loaded.job.target.gpu)
        self.query_one("#title", Label).update(f"Fit check: would {loaded.job.label} fit?")
        view.set_notes(loaded.notes)
        if loaded.missing:
            self._pane.focus_form()
        else:  # no field has the focus: a typed digit would overwrite a value that was read
            view.focus()
        self._estimate()

    def _show_read_again(self, loaded: LoadedJob) -> None:
        """Show what was opened as it is with the model that the user has given."""
        if (job := self._pane.form.job) is not None:
            self._session.history.amend(job)
        self.query_one("#title", Label).update(f"Fit check: would {loaded.job.label} fit?")
        self.query_one(VerdictView).set_notes(loaded.notes)
        self._estimate()

    def _apply_value(self, chosen: "tuple[Axis, int] | None") -> None:
        self._what_if_screen = None
        if chosen is not None:
            self._change_settings({chosen[0]: chosen[1]})

    def _change_settings(self, changes: dict[str, object]) -> None:
        if problem := self._pane.change(changes):
            self.notify(problem, severity="warning", markup=False)

    @property
    def _pane(self) -> SettingsPane:
        return self.query_one(SettingsPane)

    def _current_budget(self, purpose: str) -> Budget | None:
        """Return the budget of the settings as they are; if there is none, notify the user why."""
        view = self.query_one(VerdictView)
        if view.budget is None or view.is_invalid or view.budget.job != self.job:
            self.notify(f"{_NO_BUDGET} {purpose}: {self._why_not()}", severity="warning", markup=False)
            return None
        return view.budget

    def _why_not(self) -> str:
        """Return why there is no job or no budget, as the end of a sentence."""
        wrong = self._pane.form.problem
        job = None if wrong else self.job
        if job is not None and not _has_model(job):
            return _NO_MODEL
        return wrong or self.query_one(VerdictView).problem or "it is being estimated"


def _has_model(job: Job) -> bool:
    return job.model.id is not None or job.model.config is not None
