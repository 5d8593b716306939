"""Budgets of a job that is being edited: a quick one at once and a refined one after it, both off the UI thread."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.job import Job

from .latest_only_task import CallLater, LatestOnlyTask


class EstimateFunction(Protocol):
    """Estimates a job with the model files and the libraries that a running process sees."""

    def __call__(self, job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        """Return the budget; may raise VramtopError."""


class JobEstimates:
    """Estimates the latest version of a job; budgets of earlier versions are discarded.

    Args:
        quick: a quick estimate.
        refine: a better and slower one; None: there is none.
        call_later: ``call_later`` of the widget that shows the budgets.
        on_budget: receives each budget, quick or refined, on the UI thread.
        on_error: receives the reason why there is no quick budget, likewise.
        on_not_refined: receives the reason why there is no refined budget, likewise.
    """

    def __init__(
        self,
        quick: Callable[..., Budget],
        refine: Callable[..., Budget] | None,
        call_later: CallLater,
        *,
        on_budget: Callable[[Budget], object],
        on_error: Callable[[str], object],
        on_not_refined: Callable[[str], object],
    ) -> None:
        self._quick, self._refine = quick, refine
        self._on_budget, self._on_not_refined = on_budget, on_not_refined
        self._quick_task = LatestOnlyTask("estimate", call_later, on_budget, on_error)
        self._refine_task = LatestOnlyTask("estimate, refined", call_later, self._set_refined, self._set_not_refined)
        self.not_refined: str | None = None
        """Why there is no refined budget of the latest job; None while there may be one."""

    def cancel(self) -> None:
        """Discard all estimates of the job as it was until now."""
        self.not_refined = None
        self._quick_task.cancel()
        self._refine_task.cancel()

    def estimate(self, job: Job, **options: Any) -> None:
        """Request a quick budget of this job; ``options`` are those of the estimate functions."""
        self._quick_task.submit(partial(self._quick, job, **options))

    def refine(self, job: Job, **options: Any) -> None:
        """Request a refined budget of this job, if there is such an estimate."""
        if self._refine is not None:
            self._refine_task.submit(partial(self._refine, job, **options))

    def may_refine(self, budget: Budget) -> bool:
        """Return True if a better budget than this one may still arrive."""
        return self._refine is not None and budget.method == "formula" and self.not_refined is None

    def _set_refined(self, budget: Budget) -> None:
        """Pass on a refined budget; of one that is the closed form again, why nothing better can be had."""
        from vramtop.estimator.estimation import why_untraced  # not at start-up

        if budget.method == "formula":
            self._set_not_refined(why_untraced(budget) or "the closed form has rules for it")
        else:
            self._on_budget(budget)

    def _set_not_refined(self, reason: str) -> None:
        self.not_refined = reason
        self._on_not_refined(reason)
