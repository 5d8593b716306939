"""A step screen that follows the estimates of the screen that opened it."""

from textual.screen import Screen

from vramtop.estimator.budget import Budget

from ...background import JobEstimates
from .screen import StepScreen


class LiveStepScreen:
    """Opens the step screen, and passes on each new budget while it is open.

    Args:
        opener: the screen from which it is opened.
    """

    def __init__(self, opener: Screen[None]) -> None:
        self._opener = opener
        self._screen: StepScreen | None = None

    def open(self, budget: Budget, estimates: JobEstimates, *, gpu_bytes: int | None) -> None:
        """Open the screen on a budget.

        Args:
            budget: the latest budget of the job.
            estimates: the estimates of that job.
            gpu_bytes: memory of the GPU; None if it is not known.
        """
        self._screen = StepScreen(budget, gpu_bytes=gpu_bytes, refining=estimates.may_refine(budget))
        if estimates.not_refined:
            self._screen.show_no_trace(estimates.not_refined)
        self._opener.app.push_screen(self._screen, self._close)

    def update(self, budget: Budget, estimates: JobEstimates) -> None:
        """Draw this budget, if the screen is open."""
        if self._screen is not None:
            self._screen.show_budget(budget, refining=estimates.may_refine(budget))

    def show_not_refined(self, reason: str) -> None:
        """Say why there is no refined budget, if the screen is open."""
        if self._screen is not None:
            self._screen.show_no_trace(reason)

    def _close(self, _: None) -> None:
        self._screen = None
