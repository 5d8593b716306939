"""Advice on a job: changes that make it fit the GPUs that it is compared with, and its largest batch and sequence."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from vramtop.estimator.advice.bounded_search import BoundedSearch
from vramtop.estimator.advice.largest_fitting import LargestFitting, find_largest
from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CancelledError, Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job

EstimateJob = Callable[[Job], Budget]
Judge = Callable[[Budget], Verdict]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that could be made to a job, and their effect."""

    budget: Budget
    """The budget of the unchanged job."""
    suggestions: tuple[Suggestion, ...] = ()
    """Changes that make the job fit, cheapest first, or that come closest to it; none if it fits as it is."""
    largest: LargestFitting | None = None
    """The largest batch and sequence that fit; None: the closed form does not know the model, or there is no GPU."""


def find_advice(
    budget: Budget,
    judge: Judge,
    quick: EstimateJob,
    *,
    gpus: int,
    gpu: "Gpu | None" = None,
    change: "Callable[[Mapping[str, Any]], Job] | None" = None,
) -> Advice:
    """Search for changes of the budget's job with the closed form, moved by what measured runs say of the job.

    Args:
        budget: of the job.
        judge: whether a budget fits.
        quick: estimates variants of the job by the closed form.
        gpus: number of GPUs that there are.
        gpu: what they are; None: not known.
        change: returns the job with new values by key, as it is where they are pasted.

    Raises:
        CancelledError: the search was cancelled (see ``CancelToken``).
    """
    token = current_token()

    def estimate(job: Job) -> Budget:
        if token.cancelled:
            raise CancelledError("the job has changed")
        return quick(job)

    job, moved = budget.job, _moved(budget, estimate)
    # what a correction makes of the least that may be reserved is no lower bound
    fits = (
        BoundedSearch(moved, judge).fits if budget.learned is None else lambda changed: judge(moved(changed)) == "fits"
    )
    longest = getattr(quick, "max_positions", None)
    largest = find_largest(job, fits, max_positions=longest)
    if job.is_served:
        largest = replace(largest, micro_batch=None)  # vLLM runs as many sequences as its cache holds
    found: tuple[Suggestion, ...] = ()
    if judge(budget) != "fits":
        found = find_suggestions(budget, judge, estimate, gpus=gpus, gpu=gpu, change=change)
    return Advice(budget=budget, suggestions=found, largest=largest)


_MOST = 6


def find_suggestions(
    budget: Budget,
    judge: Judge,
    quick: EstimateJob,
    *,
    gpus: int,
    gpu: "Gpu | None" = None,
    most: int = _MOST,
    change: "Callable[[Mapping[str, Any]], Job] | None" = None,
) -> tuple[Suggestion, ...]:
    """Return changes with which the budget's job takes less, the best first; see ``find_advice``."""
    from vramtop.estimator.advice.suggestions import suggest  # off the UI thread, with the first verdict

    search = quick if budget.learned is None else _moved(budget, quick)
    return suggest(budget.job, budget, search, judge, gpus=gpus, gpu=gpu, most=most, change=change)


def _moved(budget: Budget, quick: EstimateJob) -> EstimateJob:
    """Return the quick estimate, moved by what a better method and measured runs say of the job as it is."""
    from vramtop.estimator.advice.suggestions import calibrated
    from vramtop.estimator.learning.correction import carried, uncorrected

    scaled = calibrated(budget.job, uncorrected(budget), quick)
    return scaled if budget.learned is None else lambda changed: carried(scaled(changed), budget)
