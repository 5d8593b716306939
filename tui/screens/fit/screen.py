"""The fit check screen: a job's settings as a form, and beside it whether that job would fit."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Label

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.resolved_job import settles
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.fit import DeviceCapacity
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.storage.recent_models import RecentModels

from ...background.latest_only_task import JobEstimates, LatestOnlyTask
from ...draw.text_output import printable
from ...job.form.fields import ModelInput, cached_models, model_choices
from ...job.form.job_form import JobForm
from ...job.form_reading import FormReading
from ...keys import ALT_DIGIT_CHARACTERS, bind, shown_key
from ...widgets.action_label import ActionLabel
from ...widgets.choice import Choice, ChoiceMenu
from ...widgets.keys_line import KeysLine
from ...widgets.row_table import StaticLines
from ..base import BoardApp
from ..preflight import PreflightMark
from .gpu_picker import FitSession, GpuPicker
from .verdict_pane import Advice, Capacity, EstimateJob, QuickEstimatorFor, Suggestions, VerdictView, find_advice

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.estimator.estimation import QuickEstimator

    from ...job.dialogs import OpenedJob
    from ...job.form.fields import ModelChoice
    from ...job.load_job import LoadedJob
    from ..step import LiveStepScreen
    from ..what_if import Axis, WhatIfScreen

# Estimates of the edited job: a quick one at once, a refined one and errors after a delay, and advice on a budget.


_ERROR_DELAY_SECONDS = 0.3
"""Time after the last key until an error is shown: half a model name is no mistake."""
_REFINE_DELAY_SECONDS = 0.8
"""Time after the last key until the refined estimate starts."""


class FitEstimates(JobEstimates):
    """Estimates the latest version of the job, and searches for advice on its budget.

    Args:
        screen: the screen that shows the results.
        estimate: a quick estimate; called off the UI thread, like the others.
        refine: a better and slower one; None: there is none.
        quick_estimator: makes quicker estimates for searches.
        on_budget: receives each budget, quick or refined.
        on_error: receives the reason why there is no budget, after a delay.
        on_not_refined: receives the reason why there is no refined budget.
        on_advice: receives the advice.
    """

    def __init__(
        self,
        screen: Screen[None],
        estimate: EstimateJob,
        refine: EstimateJob | None,
        quick_estimator: QuickEstimatorFor,
        *,
        on_budget: Callable[[Budget], object],
        on_error: Callable[[str], object],
        on_not_refined: Callable[[str], object],
        on_advice: Callable[[Advice], object],
    ) -> None:
        super().__init__(
            estimate,
            refine,
            screen.call_later,
            on_budget=on_budget,
            on_error=lambda sentence: self._delay(_ERROR_DELAY_SECONDS, partial(on_error, sentence)),
            on_not_refined=on_not_refined,
        )
        self._screen = screen
        self._quick_estimator = quick_estimator
        self._advice_task = LatestOnlyTask("fit check, suggestions", screen.call_later, on_advice)
        self._delayed: list[Timer] = []

    def start(self, job: Job) -> None:
        """Estimate this version of the job, and refine the estimate if no other version follows soon."""
        self.estimate(job)
        self._delay(_REFINE_DELAY_SECONDS, partial(self.refine, job))

    def search_advice(self, budget: Budget, capacity: Capacity) -> None:
        """Search for advice on this budget."""
        self._advice_task.submit(partial(find_advice, budget, capacity, self._quick_estimator))

    def cancel(self) -> None:
        """Discard all estimates and advice of the job as it was until now."""
        super().cancel()
        self._advice_task.cancel()
        for timer in self._delayed:
            timer.stop()
        self._delayed = []

    def _delay(self, seconds: float, callback: Callable[[], Any]) -> None:
        self._delayed.append(self._screen.set_timer(seconds, callback))


# The form of the fit check: the settings of the job, errors under their fields, and the job that was opened.


_MODEL = "model.id"


class SettingsPane(Vertical):
    """A job form that another one replaces when a file or a launch line is opened.

    Args:
        initial: the job to start from.
        recent: the models that the user checked last; None: they are not kept.
        on_read: receives the job that was read again with the user's model; the form shows it already.
        on_error: receives the reason why it could not be read.
        id: the widget's id in the DOM.
    """

    def __init__(
        self,
        initial: Job,
        *,
        recent: "RecentModels | None" = None,
        on_read: "Callable[[LoadedJob], object]",
        on_error: Callable[[str], object],
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id)
        self._recent = recent
        self._on_read = on_read
        self._reading = FormReading["LoadedJob"](self, on_read=self._show_read_again, on_error=on_error)
        self._initial = initial
        self._edited_field = _MODEL
        self._models: tuple[ModelChoice, ...] = ()
        self._models_task = LatestOnlyTask("models in the cache", self.call_later, self._offer_models)

    def compose(self) -> ComposeResult:
        """The choice of GPUs, and the form."""
        yield GpuPicker(chosen=self._initial.target.gpu, id="gpus")
        yield JobForm(self._initial, models=self._models, id="form")

    def on_mount(self) -> None:
        """Look for the models that were checked last and those in the Hugging Face cache."""
        recent = self._recent
        self._models_task.submit(lambda: model_choices(recent.names() if recent else (), cached_models()))

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._models_task.cancel()
        self._reading.cancel()

    @property
    def form(self) -> JobForm:
        """The form that is shown."""
        return self.query_one(JobForm)

    @property
    def is_being_read(self) -> bool:
        """True from the edit of the model until the form shows what follows from it."""
        return self._reading.is_due

    def read_again(self, read: "Callable[[Mapping[str, Any]], LoadedJob] | None") -> bool:
        """Read the job again if the last edit makes that necessary, and return whether it does."""
        return self._reading.start(self.form, read)

    def set_edited_field(self, key: str) -> None:
        """Remember the field that was edited last; an empty key stands for all fields."""
        self._edited_field = key or self._edited_field

    def show_error(self, sentence: str) -> None:
        """Write an error under the field that was edited last."""
        self.form.show_error(self._edited_field, sentence)

    def focus_form(self) -> None:
        """Move the focus to the first field."""
        self.form.query("Input, Choice").first().focus()

    def change(self, changes: dict[str, Any]) -> str | None:
        """Change these settings as one undo step; return a sentence if that is not possible."""
        form = self.form
        if form.job is None:
            return f"Not applied: {form.problem}"
        try:
            form.fill(with_changes(form.job, changes))
        except InputError as error:
            return error.message
        return None

    async def show_source(self, source: "LoadedJob") -> None:
        """Show a job that was read from a file or a launch line, with the place where each value was read."""
        self._reading.cancel()
        await self.form.remove()
        form = JobForm(source.job, origins=source.origins, missing=source.missing, models=self._models, id="form")
        await self.mount(form)
        self._edited_field = source.missing[0] if source.missing else _MODEL

    def _show_read_again(self, loaded: "LoadedJob") -> None:
        self.form.show_reading(loaded.job, loaded.origins, loaded.missing)
        self._on_read(loaded)

    def _offer_models(self, models: "tuple[ModelChoice, ...]") -> None:
        self._models = models
        self.form.set_models(models)


# Keeps the verdict of the fit check up to date with the form and the GPUs.


_NO_BUDGET = "There is no budget for these settings yet, so there is nothing to"


class JobCheck:
    """Estimates the form's job, compares it with the chosen GPUs, and searches for advice.

    Args:
        screen: has the form, the choice of GPUs and the verdict.
        session: the edited job, and what it is compared with.
        side_screens: screens opened from this one, which follow the budget.
        estimate: a quick estimate; called off the UI thread.
        refine: a better and slower one, likewise; None: there is none.
        quick_estimator: makes quicker estimates for searches.
    """

    def __init__(
        self,
        screen: Screen[None],
        session: FitSession,
        side_screens: "SideScreens",
        *,
        estimate: EstimateJob,
        refine: EstimateJob | None,
        quick_estimator: QuickEstimatorFor,
    ) -> None:
        self._screen = screen
        self._session = session
        self._side_screens = side_screens
        self.checked_model: str | None = None
        """Name of the model of the last budget."""
        self.estimates = FitEstimates(
            screen,
            estimate,
            refine,
            quick_estimator,
            on_budget=self._show_budget,
            on_error=self.show_error,
            on_not_refined=self._show_not_refined,
            on_advice=self._show_advice,
        )

    @property
    def job(self) -> Job | None:
        """The form's job with the chosen GPU as its target; None while a setting is invalid."""
        job = self._pane.form.job
        return self._picker.with_target(job) if job else None

    def start(self) -> None:
        """Request a budget for the settings as they are now, or say why there is none."""
        self.estimates.cancel()
        job = self.job
        self._screen.query_one(PreflightMark).show_job(job)
        if job is None:
            self._view.show_problem(self._pane.form.problem or "")
        elif not has_model(job):
            self._view.show_problem(_no_model())
        else:
            self.estimates.start(job)

    def compare(self, *, is_new_budget: bool = False) -> None:
        """Compare the budget with the GPUs, and search for advice again if it may have changed."""
        view, session = self._view, self._session
        budget = view.budget
        devices = self._picker.devices(budget.job.parallel.world_size if budget else 1, pinned=session.pinned)
        is_outdated = session.set_devices(devices, budget, view.advice)
        view.set_capacity(session.capacity)
        if not view.is_invalid and (is_new_budget or is_outdated):
            self._screen.call_after_refresh(self._search_advice)

    def show_error(self, sentence: str) -> None:
        """Say why there is no budget; not while the user still searches for a model."""
        if self._pane.form.is_choosing_model:
            self._view.show_problem(
                f"Enter takes the highlighted model; {shown_key('app.back')} keeps your text", mark="…"
            )
            return
        self._view.show_problem(sentence)
        self._pane.show_error(sentence)

    def budget_for(self, purpose: str) -> Budget | None:
        """Return the budget of the settings as they are; if there is none, notify the user why."""
        budget = self._view.budget
        job = self.job
        if budget is None or self._view.is_invalid or job is None or not settles(budget.job, job):
            sentence = f"{_NO_BUDGET} {purpose}: {self.why_not()}"
            self._screen.notify(sentence, severity="warning", markup=False)
            return None
        return budget

    def why_not(self) -> str:
        """Return why there is no job or no budget, as the end of a sentence."""
        wrong = self._pane.form.problem
        job = None if wrong else self.job
        if job is not None and not has_model(job):
            return _no_model()
        return wrong or self._view.problem or "it is being estimated"

    def _show_budget(self, budget: Budget) -> None:
        self.checked_model = budget.job.model.id
        self._pane.form.clear_errors()
        self._view.set_budget(budget, refining=self.estimates.may_refine(budget))
        self._side_screens.show_budget(self._view.budget or budget, self.estimates)
        self.compare(is_new_budget=True)

    def _show_not_refined(self, reason: str) -> None:
        self._view.keep_quick_budget(reason)
        self._side_screens.show_not_refined(reason)

    def _show_advice(self, advice: Advice) -> None:
        self._view.set_advice(advice)
        self._side_screens.show_advice(advice)

    def _search_advice(self) -> None:
        """Search for advice once the verdict is drawn: Python threads share one processor."""
        budget, job = self._view.budget, self.job
        if budget is not None and job is not None and settles(budget.job, job):
            self.estimates.search_advice(budget, self._session.capacity)

    @property
    def _pane(self) -> SettingsPane:
        return self._screen.query_one(SettingsPane)

    @property
    def _picker(self) -> GpuPicker:
        return self._screen.query_one(GpuPicker)

    @property
    def _view(self) -> VerdictView:
        return self._screen.query_one(VerdictView)


def has_model(job: Job) -> bool:
    """Return True if the job names a model."""
    return job.model.id is not None or job.model.config is not None


def _no_model() -> str:
    return f"enter a model: name, hub id or folder; {shown_key('fit.open')} opens a file"


# Jobs between the fit check and files: opened, saved as a job file, copied as flags.


class JobFiles:
    """Opens, saves and copies the job.

    Args:
        screen: has the form, the choice of GPUs and the verdict.
        session: the edited job, and where it was read.
        check: is started again when another job is shown.
    """

    def __init__(self, screen: Screen[None], session: FitSession, check: JobCheck) -> None:
        self._screen = screen
        self._session = session
        self._check = check

    def open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        from ...job.dialogs import OpenJobScreen  # each dialog is imported when it is opened first

        self._screen.app.push_screen(OpenJobScreen(text), self._show_opened)

    def save(self) -> None:
        """Save the job to a file."""
        from ...job.dialogs import open_save_dialog

        job = self._check.job
        if job is None or not has_model(job):
            self._refuse("save")
        else:
            open_save_dialog(self._screen, job, self._session.file)

    def copy(self) -> None:
        """Copy the changed settings to the clipboard, and show them."""
        from ...job.dialogs import CopiedTextScreen

        job = self._check.job
        if job is None:
            self._refuse("copy")
            return
        try:
            text = self._session.changes_text(job, self._screen.query_one(GpuPicker).catalogue_count)
        except VramtopError as error:  # such as of a model that is not known
            self._screen.notify(error.message, severity="warning", markup=False)
            return
        self._screen.app.copy_to_clipboard(text)
        self._screen.app.push_screen(CopiedTextScreen(text, "Changed settings"))

    def show_read_again(self, loaded: "LoadedJob") -> None:
        """Show what was opened as it is with the model that the user has given."""
        if (job := self._screen.query_one(SettingsPane).form.job) is not None:
            self._session.history.amend(job)
        self._show_name_and_notes(loaded)
        self._check.start()

    async def _show_opened(self, opened: "OpenedJob | None") -> None:
        """Show an opened job in a new form, with the place where each value was read."""
        if opened is None:
            return
        loaded, pane = opened.loaded, self._screen.query_one(SettingsPane)
        self._session.open(opened)
        await pane.show_source(loaded)
        self._screen.query_one(GpuPicker).choose(loaded.job.target.gpu)
        self._show_name_and_notes(loaded)
        if loaded.missing:
            pane.focus_form()
        else:  # no field has the focus: a typed digit would overwrite a value that was read
            self._screen.query_one(VerdictView).focus()
        self._check.start()

    def _show_name_and_notes(self, loaded: "LoadedJob") -> None:
        self._screen.query_one("#title", Label).update(f"Fit check: would {loaded.job.label} fit?")
        self._screen.query_one(VerdictView).set_notes(loaded.notes)

    def _refuse(self, purpose: str) -> None:
        sentence = f"There is no job to {purpose}: {self._check.why_not()}"
        self._screen.notify(sentence, severity="warning", markup=False)


# Keys and layout of the fit check. Function keys work while a field is being typed into, letters elsewhere.


FIT_KEYS: list[BindingType] = [
    bind(
        "app.back", "app.pop_screen", "Back",
        help_text="close; the fit check opens on the same job again. Letters and digits are keys unless you type in a "
        "field",
    ),
    bind("fit.pin", "pin", "Pin"),
    bind("fit.open", "open", "Open"),
    bind("fit.choose_gpus", "choose_gpus", "GPUs", show=False),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "other_pane", "Fixes"),
    Binding(
        "1", "apply(1)", show=False, key_display="1-9",
        tooltip="apply a suggestion (Alt+digit while you type in a field); Enter applies the highlighted one",
    ),
    *(Binding(f"{number}", f"apply({number})", show=False) for number in range(2, 10)),
    *(
        Binding(f"alt+{number},{sign}", f"apply({number})", show=False, priority=True)
        for number, sign in enumerate(ALT_DIGIT_CHARACTERS, start=1)
    ),
    bind("fit.what_if", "what_if", "What-if"),
    bind("fit.save", "save", "Save"),
    bind("fit.copy", "copy", "Copy"),
    bind("fit.undo", "undo", "Undo"),
    bind("fit.keep", "keep", "Keep A", show=False),
    bind("fit.swap", "swap"),
    bind("fit.preflight", "preflight", "Check"),
]  # fmt: skip

FIT_LAYOUT = """
FitCheckScreen #head { height: 1; background: $panel; }
FitCheckScreen #title { width: 1fr; padding: 0 1; text-style: bold; }
FitCheckScreen #help {
    width: 1fr; height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
}
FitCheckScreen #halves { height: 1fr; layout: horizontal; }
FitCheckScreen #settings { width: 2fr; max-width: 62; border-right: vkey $foreground 20%; }
FitCheckScreen #verdict { width: 3fr; }
FitCheckScreen.-narrow #halves { layout: vertical; }
FitCheckScreen.-narrow #settings {
    width: 1fr; max-width: 100%; height: 11; border-right: none; border-bottom: hkey $foreground 20%;
}
FitCheckScreen.-narrow #verdict { width: 1fr; height: 1fr; }
FitCheckScreen #head ActionLabel { margin: 0 1; }
FitCheckScreen #preflight-mark { width: auto; }
"""


# The screens that the fit check opens on its job: the training step, what-if, and preflight.


ChangeSettings = Callable[[dict[str, object]], object]
_NO_PLOT = "The closed form has no rule for this model, so there is no plot."


class SideScreens:
    """Opens the screens, and passes on what changes while one of them is open.

    Args:
        opener: the fit check.
        change_settings: changes settings of the job, by key.
    """

    def __init__(self, opener: Screen[None], change_settings: ChangeSettings) -> None:
        self._opener = opener
        self._change_settings = change_settings
        self._step: LiveStepScreen | None = None
        self._what_if: WhatIfScreen | None = None

    def open_step(self, budget: Budget, estimates: JobEstimates, *, gpu_bytes: int | None) -> None:
        """Open the step screen on the job."""
        from ..step import LiveStepScreen  # each screen is imported when it is opened first

        self._step = self._step or LiveStepScreen(self._opener)
        self._step.open(budget, estimates, gpu_bytes=gpu_bytes)

    def open_what_if(self, budget: Budget, advice: Advice | None) -> None:
        """Plot memory over the micro-batch or the sequence length; advice on an earlier job is awaited, not plotted."""
        from ..what_if import WhatIfScreen

        known = advice if advice is not None and advice.budget.job == budget.job else None
        if known is not None and not known.can_plot:
            self._opener.notify(_NO_PLOT, severity="warning")
            return
        self._what_if = WhatIfScreen(known.sweeps if known else (), label=budget.job.label)
        self._opener.app.push_screen(self._what_if, self._apply_value)

    def open_preflight(
        self,
        job: Job | None,
        budget: Budget | None,
        *,
        devices: tuple[DeviceCapacity, ...],
        launch: list[str] | None,
    ) -> None:
        """Open the preflight screen on the job."""
        from ..preflight import open_preflight

        open_preflight(self._opener, job, devices=devices, budget=budget, launch=launch)

    def show_budget(self, budget: Budget, estimates: JobEstimates) -> None:
        """Draw the step of this budget, if that screen is open."""
        if self._step is not None:
            self._step.update(budget, estimates)

    def show_not_refined(self, reason: str) -> None:
        """Say on the step screen why the step is not traced."""
        if self._step is not None:
            self._step.show_not_refined(reason)

    def show_advice(self, advice: Advice) -> None:
        """Plot the new sweeps, if the what-if screen is open."""
        if self._what_if is None:
            return
        if advice.can_plot:
            self._what_if.show_sweeps(advice.sweeps)
        elif self._what_if.is_waiting:
            self._what_if.dismiss(None)
            self._opener.notify(_NO_PLOT, severity="warning")

    def _apply_value(self, chosen: "tuple[Axis, int] | None") -> None:
        self._what_if = None
        if chosen is not None:
            self._change_settings({chosen[0]: chosen[1]})


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
        from ...job.form.fields import help_line  # parses docstrings

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


# Opens the fit check: on a pending job, on the job that was edited last, or on a new one.


_MENU_PLACE = Offset(2, 2)


def open_fit_check(app: BoardApp) -> None:
    """Open the fit check; the user chooses the job if there are several."""
    pending, draft = app.watchlist.pending(), app.fit_draft
    drafts = [draft] if draft and draft not in pending else []
    jobs: list[Job | None] = [*pending, *drafts, None]
    if len(jobs) == 1:
        _open(app, None)
        return
    names = [f"{job.label} ({'pending' if job in pending else 'as you left it'})" if job else "new" for job in jobs]

    def choose(index: int | None) -> None:
        if index is not None:
            _open(app, jobs[index])

    app.push_screen(ChoiceMenu([printable(name) for name in names], _MENU_PLACE), choose)


def _open(app: BoardApp, job: Job | None) -> None:
    watchlist = app.watchlist

    def make_quick_estimator(job: Job) -> "QuickEstimator":
        from vramtop.estimator.estimation import quick_estimator  # not before the screen is shown

        return quick_estimator(job, gpu=None if job.target.gpu else watchlist.gpu_type)

    def keep_draft(job: Job) -> None:
        if job.model != ModelSpec():
            app.fit_draft = job

    screen = FitCheckScreen(
        watchlist,
        estimate=watchlist.estimate,
        refine=app.refine,
        quick_estimator=make_quick_estimator,
        initial=job,
        pinned=job if job in watchlist.pending() else None,
        recent=RecentModels(),
        on_close=keep_draft,
    )
    app.push_once(screen)
