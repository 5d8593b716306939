"""Cache of budgets: one estimate per job, and one budget per rank of a job whose pipeline stages differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common import VramtopError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vramtop.estimator.budget import Budget, RankPeak
    from vramtop.estimator.job import Job

    from ..snapshot import WatchedJob

MAX_BUDGETS = 64
"""Budgets kept in total; those of running and pending jobs are kept even if there are more."""


class BudgetCache:
    """Budgets by job. Not safe for concurrent use.

    Args:
        estimate: a quick estimate of a job; may raise VramtopError. Called once per job.
    """

    def __init__(self, estimate: Callable[[Job], Budget]) -> None:
        self._estimate = estimate
        self._budgets: dict[bytes, Budget | str] = {}
        self._rank_budgets: dict[bytes, dict[RankPeak, Budget]] = {}

    def budget_of(self, job: Job) -> Budget | str:
        """Return the budget of a job, or the reason that there is none."""
        key = job_key(job)
        if key not in self._budgets:
            try:
                self._budgets[key] = self._estimate(job)
            except VramtopError as error:
                self._budgets[key] = error.message
        return self._budgets[key]

    def budget_of_rank(self, run: WatchedJob, rank: int) -> Budget | str:
        """Return the budget of one process of a run; always the same object until the job's budget changes.

        The budgets of pipeline stages differ, which is known if all ranks of the run are on this machine.
        """
        budget = self.budget_of(run.job)
        if isinstance(budget, str) or not budget.stages or len(run.pids) != run.job.parallel.world_size:
            return budget
        by_peak = self._rank_budgets.setdefault(job_key(run.job), {})
        peak = budget.ranks[rank]
        if peak not in by_peak:
            by_peak[peak] = budget.of_rank(rank)
        return by_peak[peak]

    def set_if_unknown(self, job: Job, budget: Budget | str) -> None:
        """Keep the budget of a job that has none yet, or the reason that it has none."""
        if isinstance(self._budgets.get(job_key(job), ""), str):
            self._budgets[job_key(job)] = budget

    def set_budget(self, budget: Budget) -> None:
        """Replace the quick estimate of a job by a better one."""
        key = job_key(budget.job)
        self._budgets[key] = budget
        self._rank_budgets.pop(key, None)

    def discard_unused(self, used: Iterable[Job]) -> None:
        """Discard the oldest budgets of unused jobs while there are more than ``MAX_BUDGETS`` in total."""
        excess = len(self._budgets) - MAX_BUDGETS
        if excess <= 0:
            return
        used_keys = set(map(job_key, used))
        for key in [key for key in self._budgets if key not in used_keys][:excess]:
            del self._budgets[key]
            self._rank_budgets.pop(key, None)


def job_key(job: Job) -> bytes:
    """Return the identity of a job: its settings as JSON."""
    import msgspec  # not before there is a job

    return msgspec.json.encode(job)
