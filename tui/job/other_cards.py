"""Estimates of one job on other types of GPU: by the closed form, shifted by what the chosen method has beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.advice.bounded_search import shifted
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.learning.correction import uncorrected

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job


def beyond_formula(job: Job, budget: Budget, gpu: Gpu | None) -> int:
    """Return by how many bytes a budget exceeds the closed form on the same card; 0 if that does not know the model.

    Args:
        job: the job.
        budget: of it.
        gpu: the card that it was estimated for; None: no particular one.
    """
    if budget.method == "formula":
        return 0
    try:
        return uncorrected(budget).peak.device_bytes - quick_estimator(job, gpu=gpu)(job).peak.device_bytes
    except CannotTellError:
        return 0


def estimator_on_card(job: Job, gpu: Gpu | None, beyond: int) -> Callable[[Job], Budget] | None:
    """Return estimates by the closed form on a card, shifted by what a more accurate budget has beyond it.

    Args:
        job: the job.
        gpu: the card.
        beyond: bytes, from ``beyond_formula``.

    Returns:
        None if the formula does not know the model: what was estimated counts for every card.
    """
    try:
        quick = quick_estimator(job, gpu=gpu)
    except CannotTellError:
        return None
    return (lambda changed: shifted(quick(changed), beyond)) if beyond else quick
