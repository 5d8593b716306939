"""Budgets of one job by type of GPU: one by the chosen method, the others by the closed form, shifted by its excess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.advice.suggestion_search import shifted
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.learning.correction import uncorrected

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.fleet.placing import Card


class BudgetsByCard:
    """The budgets of a job on the types of GPU of a fleet, each estimated once.

    Args:
        job: the job.
        estimate: estimates it for a GPU, None if that is not in the catalogue, and its total bytes; called for the
            first type only.
        correct: corrects the closed form on a GPU by measured runs; called for the others.
        gpu_type: the only type that is wanted, by a name in the catalogue; None: that of the job, otherwise all.

    Raises:
        InputError: there is no such type.
    """

    def __init__(
        self,
        job: Job,
        estimate: Callable[[Job, Gpu | None, int | None], Budget],
        correct: Callable[[Budget, Gpu | None], Budget] = lambda budget, _: budget,
        *,
        gpu_type: str | None = None,
    ) -> None:
        self.job = job
        self._estimate, self._correct = estimate, correct
        wanted = gpu_type or job.target.gpu
        self._wanted = find_gpu(wanted) if wanted else None
        self._first: tuple[Gpu | None, Budget] | None = None
        self.by_card: dict[Card, Budget] = {}
        """Budgets that were asked for so far."""

    def on(self, card: Card) -> Budget | None:
        """Return the budget on a type of GPU; None: another type is wanted.

        Raises:
            VramtopError: there is no estimate.
        """
        gpu = card.gpu_type
        if self._wanted is not None and (gpu is None or gpu.name != self._wanted.name):
            return None
        if card not in self.by_card:
            self.by_card[card] = self._budget(gpu, card.total_bytes)
        return self.by_card[card]

    def _budget(self, gpu: Gpu | None, memory_bytes: int | None) -> Budget:
        if self._first is None:
            budget = self._estimate(self.job, gpu, memory_bytes)
            self._first = gpu, budget
            return budget
        first_gpu, first = self._first
        if gpu == first_gpu:
            return first
        quick = estimator_on_card(self.job, gpu, beyond_formula(self.job, first, first_gpu))
        return first if quick is None else self._correct(quick(self.job), gpu)


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
