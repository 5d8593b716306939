"""Estimates of the edited job: a quick one at once, a refined one and errors after a delay, and advice on a budget."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import Job

from ...background import JobEstimates, LatestOnlyTask
from .verdict_pane import Advice, Capacity, EstimateJob, QuickEstimatorFor, find_advice

if TYPE_CHECKING:
    from textual.timer import Timer

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
