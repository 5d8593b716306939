"""The fit check screen: a job's settings as a form, and beside it whether that job would fit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Label

from vramtop.estimator.job import Job
from vramtop.monitor.board import Board, Watchlist

from ...job.form import JobForm, ModelInput
from ...keys import shown_key
from ...widgets import ActionLabel, Choice, KeysLine, StaticLines
from ..preflight import PreflightMark
from .gpu_picker import GpuPicker
from .job_check import JobCheck
from .job_files import JobFiles
from .keys import FIT_KEYS, FIT_LAYOUT
from .session import FitSession
from .settings_pane import SettingsPane
from .side_screens import SideScreens
from .verdict_pane import Suggestions, VerdictView

if TYPE_CHECKING:
    from vramtop.monitor.storage import RecentModels

    from .verdict_pane import EstimateJob, QuickEstimatorFor

_WIDE_COLUMNS = 116
_HEADING_HELP = "Enter unfolds or folds these settings"


class FitCheckScreen(Screen[None]):
    """The settings at the left, the verdict at the right.

    Args:
        watchlist: receives the job when it is pinned as pending.
        estimate: a quick estimate; called off the UI thread.
        refine: a better and slower one, likewise; None: there is none.
        quick_estimator: makes quicker estimates for searches; ``estimate`` itself is used when left out.
        initial: the job to start from.
        pinned: the pending job that is being edited; None: the job is not pending.
        recent: the models that the user checked last; None: they are not kept.
        on_close: receives the edited job when the screen closes.
    """

    TITLE = "Fit check"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE_COLUMNS, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = FIT_KEYS
    DEFAULT_CSS = FIT_LAYOUT

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        estimate: "EstimateJob",
        refine: "EstimateJob | None" = None,
        quick_estimator: "QuickEstimatorFor | None" = None,
        initial: Job | None = None,
        pinned: Job | None = None,
        recent: "RecentModels | None" = None,
        on_close: Callable[[Job], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._session = FitSession(watchlist, initial or Job(), pinned)
        self._recent = recent
        self._on_close = on_close
        self._side_screens = SideScreens(self, self._change_settings)
        self._check = JobCheck(
            self,
            self._session,
            self._side_screens,
            estimate=estimate,
            refine=refine,
            quick_estimator=quick_estimator or (lambda _: estimate),
        )
        self._files = JobFiles(self, self._session, self._check)

    def compose(self) -> ComposeResult:
        """The form, the verdict, the preflight mark, and the help of the field in focus."""
        self.set_class(self.app.size.width < _WIDE_COLUMNS, "-narrow")  # as Textual will: styles are computed once
        self.set_class(self.app.size.width >= _WIDE_COLUMNS, "-wide")
        with Horizontal(id="head"):
            yield Label("Fit check: would this job fit?", id="title", markup=False)
            yield PreflightMark(id="preflight-mark")
            yield ActionLabel("Pin as pending", "pin", id="pin")
        with Horizontal(id="halves"):
            yield SettingsPane(
                self._session.initial,
                recent=self._recent,
                on_read=self._files.show_read_again,
                on_error=self._check.show_error,
                id="settings",
            )
            yield VerdictView(id="verdict")
        yield StaticLines(id="help")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Estimate the initial job."""
        self._pane.focus_form()
        self._check.start()

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._check.estimates.cancel()
        if self._recent is not None and self._check.checked_model:
            self._recent.add(self._check.checked_model)
        self._on_close(self._session.history.current)

    def show_board(self, board: Board) -> None:
        """Compare the job with the GPUs as they are now."""
        self._session.set_board(board)
        self._picker.show_board(board)
        self._pane.form.state.usual_gpus = self._picker.number
        self._check.compare()

    @property
    def job(self) -> Job | None:
        """The job with the chosen GPU as its target; None while a setting is invalid."""
        return self._check.job

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate the edited job at once; with another model, what was opened is read again first."""
        self._pane.set_edited_field(event.key)
        form, session = self._pane.form, self._session
        job, history = form.job, session.history
        if job is not None and history.record(job, event.key or None, edited=form.edited):
            self.refresh_bindings()  # only now that undo is enabled: drawing the footer is slow
        if self._pane.read_again(session.read_again):
            self._check.estimates.cancel()
            self._view.show_problem(f"reading what you opened again, with {form.state.model}", mark="…")
        else:
            self._check.start()

    @on(JobForm.FieldFocused)
    def field_focused(self, event: JobForm.FieldFocused) -> None:
        """Show the help of the field, once the focus is drawn."""
        self.call_after_refresh(self._show_help, event.key)

    @on(GpuPicker.Changed)
    def gpus_changed(self) -> None:
        """Compare the budget with the new GPUs, and estimate again: the libraries depend on the GPU."""
        self._pane.form.state.usual_gpus = self._picker.number
        self._check.compare()
        if not self._pane.is_being_read:
            self._check.start()

    @on(Suggestions.Applied)
    def suggestion_applied(self, event: Suggestions.Applied) -> None:
        """Copy a suggestion into the form."""
        self._change_settings(event.suggestion.changes)

    @on(ModelInput.JobPasted)
    def text_pasted(self, event: ModelInput.JobPasted) -> None:
        """Open the launch line or the path that was pasted into the model field."""
        self._files.open(event.text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable undo while the history is empty, and the return to A while there is none."""
        if action == "swap":
            return self._view.kept is not None
        return action != "undo" or self._session.history.can_undo

    def action_pin(self) -> None:
        """Make the job pending, unless its settings are invalid."""
        job, budget = self.job, self._check.budget_for("pin")
        if job is not None and budget is not None:
            self._session.pin(job, budget)
            self.notify(
                f"{job.label} is pending: the dashboard shows whether it fits; "
                f"press {shown_key('dashboard.dismiss')} there to unpin it.",
                markup=False,
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

    def action_keep(self) -> None:
        """Keep the job as candidate A; a job that is A already is kept no longer."""
        if budget := self._check.budget_for("keep"):
            self._view.keep(None if self._view.kept and self._view.kept.job == budget.job else budget)
            self.refresh_bindings()

    def action_swap(self) -> None:
        """Go back to candidate A, and keep the job as it is now in its place."""
        kept, budget = self._view.kept, self._check.budget_for("keep")
        if kept is not None and budget is not None:
            self._view.keep(budget)
            self._picker.choose(kept.job.target.gpu)
            self._pane.form.fill(kept.job)

    def action_open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        self._files.open(text)

    def action_save(self) -> None:
        """Save the job to a file."""
        self._files.save()

    def action_copy(self) -> None:
        """Copy the changed settings to the clipboard, and show them."""
        self._files.copy()

    def action_what_if(self) -> None:
        """Plot memory over the micro-batch or the sequence length."""
        if budget := self._check.budget_for("plot"):
            self._side_screens.open_what_if(budget, self._view.advice)

    def action_step(self) -> None:
        """Open the step screen on the job."""
        if budget := self._check.budget_for("draw"):
            gpu_bytes = self._session.capacity.limits(budget).gpu_bytes
            self._side_screens.open_step(budget, self._check.estimates, gpu_bytes=gpu_bytes)

    def action_preflight(self) -> None:
        """Open the preflight screen on the job."""
        job = self.job
        devices = self._picker.devices(job.parallel.world_size) if job else ()
        self._side_screens.open_preflight(job, self._view.budget, devices=devices, launch=self._session.launch)

    def action_choose_gpus(self) -> None:
        """Move the focus to the choice of GPUs."""
        self._picker.query_one(Choice).focus()

    def action_other_pane(self) -> None:
        """Move the focus to the suggestions, or to the verdict if there are none; from there to the settings."""
        view, suggestions = self._view, self.query_one(Suggestions)
        if self.focused is not None and view in self.focused.ancestors_with_self:
            self._pane.focus_form()
        else:
            (suggestions if suggestions.display else view).focus()

    def _show_help(self, key: str | None) -> None:
        from ...job.form import help_line  # parses docstrings

        for line in self.query("#help").results(StaticLines):  # none once the screen was closed
            line.show(Content(help_line(key) if key else _HEADING_HELP))

    def _change_settings(self, changes: dict[str, object]) -> None:
        if problem := self._pane.change(changes):
            self.notify(problem, severity="warning", markup=False)

    @property
    def _pane(self) -> SettingsPane:
        return self.query_one(SettingsPane)

    @property
    def _picker(self) -> GpuPicker:
        return self.query_one(GpuPicker)

    @property
    def _view(self) -> VerdictView:
        return self.query_one(VerdictView)
