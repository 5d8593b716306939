"""Keeps the verdict of the fit check up to date with the form and the GPUs."""

from typing import TYPE_CHECKING

from textual.screen import Screen

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import Job, settles

from ...keys import shown_key
from ..preflight import PreflightMark
from .estimates import FitEstimates
from .gpu_picker import GpuPicker
from .session import FitSession
from .settings_pane import SettingsPane
from .verdict_pane import Advice, EstimateJob, QuickEstimatorFor, VerdictView

if TYPE_CHECKING:
    from .side_screens import SideScreens

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
