"""The fit check screen: a job's settings as a form, and beside it whether that job would fit."""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import DescendantFocus
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Label

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import NOT_REHEARSED, InputError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import REHEARSED, Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.job.settled import settles
from vramtop.estimator.trace.own_program import WhatRuns, what_runs
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.capacity import count_devices
from vramtop.monitor.board.watchlist import Watchlist

from ...background.job_estimates import JobEstimates
from ...background.latest_only_task import LatestOnlyTask
from ...job.advice import Advice, EstimateJob
from ...job.form.field_row import help_line
from ...job.form.job_form import JobForm
from ...job.form.model_input import ModelInput
from ...job.loaded_job import LoadedJob
from ...job.usual_sizes import with_older_libraries
from ...keys import bind, shown_key
from ...widgets.choice import Choice
from ...widgets.content_lines import StaticLines
from ...widgets.keys_line import KeysLine
from ..base import BoardApp
from ..preflight.screen import PreflightMark, open_preflight
from .gpu_picker import Capacity, GpuPicker, QuickEstimatorFor, advice_on, capacity_fingerprint
from .settings_pane import SettingsPane, UndoHistory
from .suggestions import Suggestions
from .verdict_view import VerdictView

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.estimator.estimation import QuickEstimator

    from ...job.dialogs import OpenedJob
    from ..step.screen import LiveStepScreen

FIT_KEYS: list[BindingType] = [
    bind(
        "app.back", "app.pop_screen", "Back",
        help_text=(
            "close; the next fit check opens on the same job. Letters and digits are keys unless you type in a field"
        ),
    ),
    bind("fit.pin", "pin", "Pin"),
    bind("fit.open", "open", "Open"),
    bind("fit.choose_gpus", "choose_gpus"),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "focus_settings(False)", "Fixes"),
    bind("form.other_pane", "focus_settings(True)", "Settings", help_text=""),
    Binding(
        "1", "apply(1)", show=False, key_display="1-9",
        tooltip="apply a suggestion; Enter applies the highlighted one",
    ),
    *(Binding(f"{number}", f"apply({number})", show=False) for number in range(2, 10)),
    bind("fit.save", "save", "Save"),
    bind("fit.copy", "copy", "Copy"),
    bind("fit.undo", "undo", "Undo"),
    bind("fit.rehearse", "rehearse", "Rehearse"),
    bind("fit.preflight", "preflight", "Check"),
]  # fmt: skip
_ERROR_DELAY_SECONDS = 0.3
"""Time after the last key until an error is shown: half a model name is no mistake."""
_REFINE_DELAY_SECONDS = 0.8
"""Time after the last key until the refined estimate starts."""
_WIDE_COLUMNS = 116


class FitCheckScreen(Screen[None]):
    """The settings at the left, the verdict at the right.

    An edited job gets a quick estimate at once, a refined one or an error after a delay, and then advice.

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
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE_COLUMNS, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = FIT_KEYS
    DEFAULT_CSS = """
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
    FitCheckScreen #preflight-mark { width: auto; margin: 0 1; }
    """

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
        typed = with_older_libraries(LoadedJob(job=Job()), None)  # as a model on the command line is counted
        self._watchlist, self._initial = watchlist, initial or typed.job
        self._first_notes = typed.notes if initial is None else ()
        self._history = UndoHistory(self._initial)
        self._pinned = pinned
        """The pending version of the job: pinning again replaces it."""
        self._opened: OpenedJob | None = None
        """The file, launch line or model that the user opened last."""
        self._host: int | None = None
        self._capacity = Capacity()
        """The GPUs and the RAM that the job is compared with."""
        self._on_close = on_close
        self._quick_estimator = quick_estimator or (lambda _: estimate)
        self._estimates = JobEstimates(
            estimate,
            refine,
            self.call_later,
            on_budget=self._show_budget,
            on_error=lambda sentence: self._delay(_ERROR_DELAY_SECONDS, partial(self._show_error, sentence)),
            on_not_refined=self._show_not_refined,
        )
        self._advice_task = LatestOnlyTask("fit check, suggestions", self.call_later, self._show_advice)
        self._look_task: LatestOnlyTask[tuple[Job, WhatRuns]] = LatestOnlyTask(
            "fit check, program", self.call_later, self._ask_to_rehearse, self._show_error
        )
        self._delayed: list[Timer] = []
        self._step: LiveStepScreen | None = None

    def compose(self) -> ComposeResult:
        """The form, the verdict, the preflight mark, and the help of the field in focus."""
        self.set_class(self.app.size.width < _WIDE_COLUMNS, "-narrow")  # as Textual will: styles are computed once
        self.set_class(self.app.size.width >= _WIDE_COLUMNS, "-wide")
        with Horizontal(id="head"):
            yield Label("Fit check: would this job fit?", id="title", markup=False)
            yield PreflightMark(id="preflight-mark")
        with Horizontal(id="halves"):
            yield SettingsPane(self._initial, on_read=self._show_read_again, on_error=self._show_error)
            yield VerdictView(id="verdict")
        yield StaticLines(id="help")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Estimate the initial job."""
        self._pane.focus_form()
        self._view.notes = self._first_notes
        self._start()

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._cancel()
        self._on_close(self._history.current)

    def show_board(self, board: Board) -> None:
        """Compare the job with the GPUs as they are now."""
        self._host = self._watchlist.host_memory(board.snapshot)
        self._picker.show_board(board)
        self._pane.form.state.usual_gpus = self._picker.number
        self._compare()

    @property
    def job(self) -> Job | None:
        """The job with the chosen GPU as its target; None while a setting is invalid."""
        job = self._pane.form.job
        return self._picker.with_target(job) if job else None

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate the edited job at once; with another model, what was opened is read again first."""
        pane, opened = self._pane, self._opened
        pane.edited_field = event.key or pane.edited_field
        form = pane.form
        if form.job is not None and self._history.record(form.job, event.key or None, edited=form.state.edited):
            self.refresh_bindings()  # only now that undo is enabled: drawing the footer is slow
        read = None if opened is None else partial(_read_again, opened, self._gpus)
        if pane.reading.start(form, read):
            self._cancel()
            self._view.show_problem(f"reading the opened file again with {form.state.model}", mark="…")
        else:
            self._start()

    @on(JobForm.FieldFocused)
    def field_focused(self, event: JobForm.FieldFocused) -> None:
        """Show the help of the field, once the focus is drawn."""
        self.call_after_refresh(self._show_help, event.key)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Show what the keys do beside the verdict."""
        if self._view in event.widget.ancestors_with_self:
            self.call_after_refresh(self._show_help, "advice")

    @on(GpuPicker.Changed)
    def gpus_changed(self) -> None:
        """Compare the budget with the new GPUs, and estimate again: the libraries depend on the GPU."""
        self._pane.form.state.usual_gpus = self._picker.number
        self._compare()
        if not self._pane.reading.is_due:
            self._start()

    @on(Suggestions.Applied)
    def suggestion_applied(self, event: Suggestions.Applied) -> None:
        """Copy a suggestion into the form, as one step that can be undone."""
        form = self._pane.form
        if form.job is None:
            self._warn(f"Not applied: {form.problem}")
            return
        try:
            form.fill(with_changes(form.job, event.suggestion.changes))
        except InputError as error:
            self._warn(error.message)

    @on(ModelInput.JobPasted)
    def text_pasted(self, event: ModelInput.JobPasted) -> None:
        """Open the launch line or the path that was pasted into the model field."""
        self.action_open(event.text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable undo while the history is empty, and what only programs have."""
        match action:
            case "rehearse":
                return self._program is not None
            case "undo":
                return self._history.can_undo
            case "focus_settings":
                return parameters == (self.focused is not None and self._view in self.focused.ancestors_with_self,)
        return True

    def action_pin(self) -> None:
        """Make the job pending in place of the version pinned before, unless its settings are invalid."""
        job, budget = self.job, self._budget_for("pin")
        if job is None or budget is None:
            return
        if self._pinned is not None and self._pinned != job:
            self._watchlist.remove_pending(self._pinned)
        self._pinned = job
        self._watchlist.add_pending(job)
        if budget.method != "formula" and settles(budget.job, job):
            self._watchlist.set_budget(budget)
        unpin = shown_key("dashboard.dismiss")
        sentence = f"{job.label} is pending: the dashboard shows whether it fits; press {unpin} there to unpin it."
        self.notify(sentence, markup=False)

    def action_apply(self, number: int) -> None:
        """Apply the suggestion with this number."""
        suggestions = self.query_one(Suggestions)
        if number <= len(suggestions.suggestions):
            suggestions.apply(number)
        else:
            self.notify(f"There is no suggestion {number}.", severity="warning")

    async def action_undo(self) -> None:
        """Undo the last change: a suggestion, an opened file, the edits of one field, or what a rehearsal replaced."""
        was_program, opened = self._history.current.program is not None, self._opened
        if (job := self._history.undo()) is None:
            return
        if was_program and opened is not None and job == opened.loaded.job:  # with the settings that are missing
            await self._show_loaded(opened.loaded)
        else:
            self._pane.form.fill(job, self._history.edited)

    def action_open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        from ...job.dialogs import OpenJobScreen  # dialogs are imported when one is opened first

        self.app.push_screen(OpenJobScreen(text), self._show_opened)

    def action_save(self) -> None:
        """Save the job to a file."""
        from ...job.dialogs import SaveJobScreen

        job, file = self.job, self._opened.loaded.file if self._opened else None
        if job is None or not _has_model(job):
            self._warn(f"There is no job to save: {self._why_not()}")
            return

        def saved(path: Path | None) -> None:
            if path is not None:
                self.notify(f"saved: vramtop fit {path}", markup=False)

        self.app.push_screen(SaveJobScreen(job, str(file or f"{job.label}.toml")), saved)

    def action_copy(self) -> None:
        """Copy the changed settings to the clipboard, as flags and as edits of what was opened, and show them."""
        from ...job.changed_settings import changed_settings_text
        from ...job.dialogs import CopiedTextScreen

        job = self.job
        if job is None:
            self._warn(f"There is no job to copy: {self._why_not()}")
            return
        loaded, text = (self._opened.loaded, self._opened.text) if self._opened else (None, "")
        try:
            changes = changed_settings_text(job, loaded, text, gpus=self._picker.catalogue_count)
        except VramtopError as error:  # such as of a model that is not known
            self._warn(error.message)
            return
        self.app.copy_to_clipboard(changes)
        self.app.push_screen(CopiedTextScreen(changes))

    def action_step(self) -> None:
        """Open the step screen on the job."""
        if budget := self._budget_for("draw"):
            from ..step.screen import LiveStepScreen  # imported when it is opened first

            self._step = self._step or LiveStepScreen(self)
            self._step.open(
                budget,
                self._estimates,
                gpu_bytes=tightest.total_bytes if (tightest := self._capacity.tightest(budget)) else None,
            )

    def action_preflight(self) -> None:
        """Open the preflight screen on the job."""
        job, launch = self.job, None
        devices = self._picker.devices(job.parallel.world_size) if job else ()
        if self._opened is not None and self._opened.loaded.is_launch_line:
            launch = shlex.split(self._opened.text)
        choice = self._opened.loaded.devices if self._opened is not None else None
        open_preflight(self, job, devices=devices, budget=self._view.budget, launch=launch, choice=choice)

    def action_rehearse(self) -> None:
        """Ask whether to run the program, and show what would run."""
        job = self._program
        if job is None or job.program is None:
            self._warn(f"There is no program to rehearse: {self._why_not()}")
            return
        program = job.program
        self._look_task.submit(lambda: (job, what_runs(program)))

    def action_choose_gpus(self) -> None:
        """Open the list of GPUs to choose from."""
        self._picker.query_one(Choice).focus().action_list()

    def action_focus_settings(self, to_settings: bool) -> None:
        """Move the focus to the settings; otherwise to the suggestions, or to the verdict if there are none."""
        suggestions = self.query_one(Suggestions)
        if to_settings:
            self._pane.focus_form()
        else:
            (suggestions if suggestions.display else self._view).focus()

    def _start(self) -> None:
        """Request a budget for the settings as they are now, or say why there is none."""
        self._cancel()
        job = self.job
        self.query_one(PreflightMark).show_job(job)
        if job is None:
            self._view.show_problem(self._pane.form.problem or "")
        elif job.program is not None:
            self._view.show_problem(f"looking for a rehearsal of {job.label}", mark="…")
            self._delay(_REFINE_DELAY_SECONDS, partial(self._estimates.estimate, job))
        elif not _has_model(job):
            self._view.show_problem(_no_model(), mark="…")
        else:
            self._estimates.estimate(job)
            self._delay(_REFINE_DELAY_SECONDS, partial(self._estimates.refine, job))
        self._show_offer()

    def _ask_to_rehearse(self, looked_at: tuple[Job, WhatRuns]) -> None:
        from ...job.dialogs import RehearseScreen

        job, what = looked_at
        self.app.push_screen(RehearseScreen(what), partial(self._rehearse, job))

    async def _rehearse(self, job: Job, agreed: bool | None) -> None:
        """Run the program of a job to which the user has agreed, unless the job is another one by now."""
        if not agreed or job != self._program:
            return
        if job != self.job and self._opened is not None:  # until now it was read
            opened = self._opened.loaded
            origins = {"program.command": opened.place or ""}
            self._history.record(job)
            await self._show_loaded(replace(opened, job=job, reading=None, origins=origins, missing=(), notes=()))
        self._cancel()
        self._view.show_problem(f"rehearsing {job.label}", mark="…")

        def show(text: str) -> None:
            if self._view.is_invalid and job == self.job:  # it may have changed
                self._view.show_problem(text, mark="…")

        self._estimates.estimate(job, progress=partial(self.call_later, show), may_run=True)

    def _cancel(self) -> None:
        """Discard all estimates and advice of the job as it was until now."""
        self._look_task.cancel()
        self._estimates.cancel()
        self._advice_task.cancel()
        for timer in self._delayed:
            timer.stop()
        self._delayed = []

    def _delay(self, seconds: float, callback: Callable[[], Any]) -> None:
        self._delayed.append(self.set_timer(seconds, callback))

    def _compare(self, *, is_new_budget: bool = False) -> None:
        """Compare the budget with the GPUs, and search for advice again if it may have changed."""
        view, before = self._view, self._capacity
        budget, offered = view.budget, view.advice.suggestions if view.advice else ()
        devices = self._picker.devices(budget.job.parallel.world_size if budget else 1, pinned=self._pinned)
        is_local = budget is None or budget.job.target.gpu is None
        self._capacity = Capacity(devices=devices, host=self._host if is_local else None)
        view.set_capacity(self._capacity)
        if budget is None or view.is_invalid:
            return
        prints = [capacity_fingerprint(offered, budget, each) for each in (before, self._capacity)]
        if not is_new_budget and prints[0] == prints[1]:
            return

        def search() -> None:
            budget, job = view.budget, self.job
            if budget is not None and job is not None and settles(budget.job, job):
                self._advice_task.submit(partial(advice_on, budget, self._capacity, self._quick_estimator))

        self.call_after_refresh(search)  # once the verdict is drawn: Python threads share one processor

    def _show_budget(self, budget: Budget) -> None:
        if budget.rehearsal is not None and self._pinned is not None and self._pinned == self.job:
            self._watchlist.set_budget(budget, self._pinned)
        self._pane.form.clear_errors()
        self._view.set_budget(budget, refining=self._estimates.may_refine(budget))
        if self._step is not None:
            self._step.update(self._view.budget or budget, self._estimates)
        self._compare(is_new_budget=True)
        self._show_offer()

    def _show_not_refined(self, reason: str) -> None:
        self._view.keep_quick_budget(reason)
        if self._step is not None:
            self._step.show_not_refined(reason)

    def _show_advice(self, advice: Advice) -> None:
        self._view.set_advice(advice)

    def _show_error(self, sentence: str) -> None:
        """Say why there is no budget; not while the user still searches for a model."""
        if hint := self._pane.form.model_hint:
            self._view.show_problem(hint, mark="…")
            return
        if sentence.startswith(NOT_REHEARSED) and self._is_own_script and (job := self._program) is not None:
            self.call_later(self._rehearse, job, agreed=True)
            return
        if sentence.startswith(NOT_REHEARSED):
            key = shown_key("fit.rehearse")
            self._view.show_problem(f"{NOT_REHEARSED}{key} shows the command and asks first", mark="…")
            return
        from ...job.scripted_models import may_be_scripted  # with msgspec's records of every such model

        name = job.model.id if (job := self.job) is not None else None
        if name is not None and "not known by name" in sentence and may_be_scripted(name):
            sentence = (
                f"{name} has no closed form: {shown_key('fit.open')} opens it, and its training script is rehearsed"
            )
        self._view.show_problem(sentence)
        self._pane.form.show_error(self._pane.edited_field, sentence)

    def _budget_for(self, purpose: str) -> Budget | None:
        """Return the budget of the settings as they are; if there is none, notify the user why."""
        budget, job = self._view.budget, self.job
        if budget is None or self._view.is_invalid or job is None or not settles(budget.job, job):
            none = "There is no budget for these settings yet, so there is nothing to"
            self._warn(f"{none} {purpose}: {self._why_not()}")
            return None
        return budget

    def _why_not(self) -> str:
        """Return why there is no job or no budget, as the end of a sentence."""
        wrong = self._pane.form.problem
        job = None if wrong else self.job
        if job is not None and not _has_model(job):
            return _no_model()
        return wrong or self._view.problem or "it is being estimated"

    async def _show_opened(self, opened: "OpenedJob | None") -> None:
        """Show an opened job in a new form, with the place where each value was read."""
        if opened is None:
            return
        self._picker.limit(opened.loaded.devices)
        opened = replace(opened, loaded=_over_gpus(opened.loaded, self._gpus))
        self._opened, self._pinned = opened, None
        self._history.record(opened.loaded.job)
        await self._show_loaded(opened.loaded)

    async def _show_loaded(self, loaded: "LoadedJob") -> None:
        pane = self._pane
        await pane.show_source(loaded)
        self._picker.choose(loaded.job.target.gpu)
        self._show_name_and_notes(loaded)
        if loaded.missing:
            pane.focus_form()
        else:  # no field has the focus: a typed digit would overwrite a value that was read
            self._view.focus()
        self._start()

    def _show_read_again(self, loaded: "LoadedJob") -> None:
        """Show what was opened as it is with the model that the user has given; it is part of the same edit."""
        self._history.current = self._pane.form.job or self._history.current
        self._show_name_and_notes(loaded)
        self._start()

    def _show_name_and_notes(self, loaded: "LoadedJob") -> None:
        name = loaded.job.label if loaded.job.has_label else "this job"
        self.query_one("#title", Label).update(f"Fit check: would {name} fit?")
        program = () if loaded.job.program is None else (f"{loaded.job.label} {REHEARSED}.",)
        self._view.notes = (*program, *self._picker.limit(loaded.devices), *loaded.notes)

    def _show_help(self, key: str | None) -> None:
        for line in self.query("#help").results(StaticLines):  # none once the screen was closed
            line.show(Content(help_line(key or "")))

    def _warn(self, sentence: str) -> None:
        self.notify(sentence, severity="warning", markup=False)

    @property
    def _program(self) -> Job | None:
        """The job with the program that can be rehearsed: this one, or that of the launch line as it was read."""
        if self._history.current.program is not None:
            return self.job
        loaded = self._opened.loaded if self._opened is not None else None
        if loaded is None or loaded.program is None or self._history.current != loaded.job:
            return None
        return self._picker.with_target(loaded.program)

    @property
    def _is_own_script(self) -> bool:
        """Whether the program is the training script of a model that was opened by its name, which vramtop wrote."""
        loaded, job = self._opened.loaded if self._opened else None, self._program
        if loaded is None or loaded.script is None or loaded.job.program is None or job is None or job.program is None:
            return False
        return job.program.command == loaded.job.program.command

    def _show_offer(self) -> None:
        """Offer a rehearsal of the program of which not all was read; of one that was not read at all, say why."""
        loaded, sentence = self._opened.loaded if self._opened else None, ""
        if loaded is not None and self._history.current.program is not None:
            sentence = "".join(loaded.why_unread) if self._view.is_invalid else ""
        elif loaded is not None and self._program is not None:
            gpus = self._gpus or 0
            what = "Not all of the program was read." if loaded.unknown(self._view.budget) else ""
            if gpus > 1 and loaded.reading is not None and loaded.reading.splits_batches:
                what = f"The program finds {gpus} GPUs, and this figure counts one (see below)."
            key = shown_key("fit.rehearse")
            sentence = f"{what} {key} rehearses it for the exact figure, and asks first." if what else ""
        if sentence != self._view.offer:
            self._view.show_offer(sentence)
            self.refresh_bindings()

    @property
    def _gpus(self) -> int | None:
        """Number of GPUs that a program finds; None: not known."""
        return count_devices(self._picker.devices(1)) or None

    @property
    def _pane(self) -> SettingsPane:
        return self.query_one(SettingsPane)

    @property
    def _picker(self) -> GpuPicker:
        return self.query_one(GpuPicker)

    @property
    def _view(self) -> VerdictView:
        return self.query_one(VerdictView)


def _read_again(opened: "OpenedJob", count: int | None, edits: Mapping[str, Any]) -> "LoadedJob":
    """Return what was opened with the user's edits, over so many GPUs."""
    from ...job.typed_job import load_again

    return _over_gpus(load_again(opened.text, opened.loaded, edits), count)


def _over_gpus(loaded: "LoadedJob", count: int | None) -> "LoadedJob":
    """Return the job over so many GPUs, as far as it leaves their number to the machine."""
    found = loaded.finding_gpus(count)
    if (count or 0) > 1 and found.reading is not None and found.reading.splits_batches:
        from vramtop.estimator.uncertain_settings import SPLITS_BATCHES

        found = replace(found, notes=(*found.notes, f"{SPLITS_BATCHES.format(count)}, which is not counted."))
    return found


def _has_model(job: Job) -> bool:
    return job.model.id is not None or job.model.config is not None or job.program is not None


def _no_model() -> str:
    return f"enter a model: name, hub id or folder; {shown_key('fit.open')} opens a file"


_MENU_PLACE = Offset(2, 2)


def open_fit_check(app: BoardApp) -> None:
    """Open the fit check; the user chooses the job if there are several."""
    pending, draft = app.watchlist.pending(), app.fit_draft
    drafts = [draft] if draft and draft not in pending else []
    jobs: list[Job | None] = [*pending, *drafts, None]
    names = [f"{job.label} ({'pending' if job in pending else 'as you left it'})" if job else "new" for job in jobs]
    app.choose(jobs, names, partial(_open, app), _MENU_PLACE)


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
        on_close=keep_draft,
    )
    app.push_once(screen)
