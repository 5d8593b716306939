"""Cache of budgets: one estimate per job, and one budget per rank of a job whose pipeline stages differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.errors import VramtopError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vramtop.estimator.budget import Budget, RankPeak
    from vramtop.estimator.job.job import Job

    from ..snapshot.snapshot import WatchedJob


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
        """By the identity of the budget's job, which has a value for each setting that the job given leaves open."""
        self._settled: dict[bytes, bytes] = {}
        """That identity by the one of the job given, where they differ."""
        self._rank_budgets: dict[bytes, dict[RankPeak | int, Budget]] = {}
        """Budgets of ranks by job: by the peak of the pipeline stage, or for a server by the memory of the GPU."""

    def budget_of(self, job: Job) -> Budget | str:
        """Return the budget of a job, or the reason that there is none."""
        key = self._key(job)
        if key not in self._budgets:
            try:
                self._keep(job, self._estimate(job))
            except VramtopError as error:
                self._keep(job, error.message)
        return self._budgets[self._key(job)]

    def budget_of_rank(self, run: WatchedJob, rank: int, total_bytes: int | None = None, *, ranks: int) -> Budget | str:
        """Return the budget of one process of a run; always the same object until the job's budget changes.

        The budgets of pipeline stages differ, which is known if all ranks of the run are on this machine. A server's
        depends on the GPU, of which it takes a share.

        Args:
            run: the run.
            rank: place of the process in the run; of a single process on several GPUs, place of the GPU.
            ranks: places that there are.
            total_bytes: memory of its GPU as CUDA states it; None: unknown.
        """
        budget = self.budget_of(run.job)
        if isinstance(budget, str):
            return budget
        if budget.serving is not None:
            from vramtop.estimator.server_budget import budget_on_gpu

            by_total = self._rank_budgets.setdefault(job_key(budget.job), {})
            total = total_bytes or 0
            if total not in by_total:
                by_total[total] = budget_on_gpu(budget, total_bytes)
            return by_total[total]
        if not budget.stages or ranks != len(budget.ranks):
            return budget
        by_peak = self._rank_budgets.setdefault(self._key(run.job), {})
        peak = budget.ranks[rank]
        if peak not in by_peak:
            by_peak[peak] = budget.of_rank(rank)
        return by_peak[peak]

    def set_if_unknown(self, job: Job, budget: Budget | str) -> None:
        """Keep the budget of a job that has none yet, or the reason that it has none."""
        if isinstance(self._budgets.get(self._key(job), ""), str):
            self._keep(job, budget)

    def _key(self, job: Job) -> bytes:
        given = job_key(job)
        return self._settled.get(given, given)

    def _keep(self, job: Job, budget: Budget | str) -> None:
        given = job_key(job)
        key = given if isinstance(budget, str) else job_key(budget.job)
        if key != given:
            self._settled[given] = key
        if isinstance(self._budgets.get(key, ""), str):  # else one that is as good or better is known
            self._budgets[key] = budget

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
        used_keys = set(map(self._key, used))
        for key in [key for key in self._budgets if key not in used_keys][:excess]:
            del self._budgets[key]
            self._rank_budgets.pop(key, None)
        self._settled = {given: key for given, key in self._settled.items() if key in self._budgets}


def job_key(job: Job) -> bytes:
    """Return the identity of a job: its settings as JSON."""
    return msgspec.json.encode(job)
