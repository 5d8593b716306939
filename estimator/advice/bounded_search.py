"""Judges changed jobs, and replays the steps only of those whose verdict depends on what the allocator reserves.

The allocator never reserves less than is allocated at the peak. A job that does not fit with that much does not fit,
and needs no replay; nor does one that is at best tight, where only those that fit matter. The answers are those of
replaying every job, if the judge gives a budget with more bytes no better verdict.
"""

from collections.abc import Callable
from typing import Literal

from ..budget import Budget
from ..common import with_reserved_memory
from ..job import Job

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]
Estimate = Callable[[Job], Budget]
Judge = Callable[[Budget], Verdict]


class BoundedSearch:
    """Judges jobs by a quick estimate.

    Args:
        estimate: a closed form or a function of one; another estimate is exact anyway, and its verdicts are final.
        judge: returns the verdict on a budget: none that is better for more bytes.
    """

    def __init__(self, estimate: Estimate, judge: Judge) -> None:
        self.estimate = estimate
        self.judge = judge

    def least(self, job: Job) -> tuple[Budget, Verdict]:
        """Return the budget with the least that may be reserved (``is_least``), and the best verdict that there may be.

        Raises:
            VramtopError: what the estimate raises.
        """
        with with_reserved_memory("least"):
            budget = self.estimate(job)
        return budget, self.judge(budget)

    def exact(self, budget: Budget) -> tuple[Budget, Verdict]:
        """Return the budget and the verdict with the reserved memory of a replay."""
        if budget.is_least:
            budget = self.estimate(budget.job)
        return budget, self.judge(budget)

    def fits(self, job: Job) -> bool:
        """Return whether the job fits.

        Raises:
            VramtopError: what the estimate raises.
        """
        budget, verdict = self.least(job)
        return verdict == "fits" and self.exact(budget)[1] == "fits"
