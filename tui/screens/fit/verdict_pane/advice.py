"""Advice on a job: suggestions that make it fit, and sweeps over its micro-batch and sequence length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import CancelledError, VramtopError, current_token
from vramtop.estimator.job import Job
from vramtop.monitor.board.fit import count_devices

from .capacity import Capacity

if TYPE_CHECKING:
    from vramtop.estimator.advice import Suggestion

    from ...what_if import Axis, Sweep

EstimateJob = Callable[[Job], Budget]
QuickEstimatorFor = Callable[[Job], EstimateJob]
"""Makes an estimate function for a search: it is quick, and takes only variants of the given job."""
_MAX_SUGGESTIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Changes that could be made to a job, and their effect."""

    budget: Budget
    """The budget of the job as it is."""
    suggestions: "tuple[Suggestion, ...]" = ()
    """Changes that make the job fit, cheapest first, or that come closest to it; none if it fits as it is."""
    sweeps: "tuple[Sweep, ...]" = ()
    """One over the micro-batch and one over the sequence length."""

    @property
    def can_plot(self) -> bool:
        """True if every sweep has a point."""
        return bool(self.sweeps) and all(sweep.points for sweep in self.sweeps)


def find_advice(budget: Budget, capacity: Capacity, quick_estimator: QuickEstimatorFor) -> Advice:
    """Search for advice on the budget's job; the result is empty if the quick estimate has no rule for its model.

    Raises:
        CancelledError: the search was cancelled (see ``CancelToken``).
    """
    try:
        return _search(budget, capacity, quick_estimator(budget.job))
    except CancelledError:
        raise
    except VramtopError:
        return Advice(budget=budget)


def _search(budget: Budget, capacity: Capacity, quick_estimate: EstimateJob) -> Advice:
    from vramtop.estimator.advice import calibrated, suggest  # off the UI thread, with the first verdict
    from vramtop.estimator.learning import uncorrected
    from vramtop.estimator.learning.carried import carried

    from ...what_if import AXES, sweep_setting

    token = current_token()

    def estimate(job: Job) -> Budget:
        if token.cancelled:
            raise CancelledError("the job has changed")
        return quick_estimate(job)

    scaled = calibrated(budget.job, uncorrected(budget), estimate)

    def carrying(job: Job) -> Budget:
        return carried(scaled(job), budget)

    found: tuple[Suggestion, ...] = ()
    if capacity.devices and capacity.verdict(budget) in ("does_not_fit", "tight"):
        search = estimate if budget.learned is None else carrying
        gpus = count_devices(capacity.devices)
        found = suggest(budget.job, budget, search, capacity.verdict, gpus=gpus, most=_MAX_SUGGESTIONS)
    limits, max_positions = capacity.limits(budget), getattr(quick_estimate, "max_positions", None)

    def on_the_verdicts_scale(job: Job) -> Budget:
        return budget if job == budget.job else carrying(job)

    def sweep_over(axis: "Axis") -> "Sweep":
        return sweep_setting(
            budget.job, axis, on_the_verdicts_scale, capacity.verdict, limits, max_positions=max_positions
        )

    return Advice(budget=budget, suggestions=found, sweeps=tuple(sweep_over(axis) for axis in AXES))
