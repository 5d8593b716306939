"""Judges changed jobs, and replays the steps only of those whose verdict depends on what the allocator reserves.

The allocator never reserves less than is allocated at the peak. A job that does not fit with that much does not fit,
and needs no replay; nor does one that is at best tight, where only those that fit matter. The answers are those of
replaying every job, if the judge gives a budget with more bytes no better verdict.
"""

from collections.abc import Callable
from dataclasses import replace
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

    def fits_with(self, job: Job, more: int) -> bool:
        """Return whether the job fits if it takes the least that it may take, and so many bytes more.

        Raises:
            VramtopError: what the estimate raises.
        """
        with with_reserved_memory("least"):
            budget = self.estimate(job)
        return self.judge(shifted(budget, more)) == "fits"


def shifted(budget: Budget, by: int) -> Budget:
    """Return the budget with ``by`` bytes added to all device figures; its components are unchanged."""
    if not by:
        return budget
    peak = replace(
        budget.peak,
        device_bytes=max(0, budget.peak.device_bytes + by),
        low_bytes=max(0, budget.peak.low_bytes + by),
        high_bytes=max(0, budget.peak.high_bytes + by),
    )
    stages = tuple(
        replace(
            stage,
            device_bytes=max(0, stage.device_bytes + by),
            low_bytes=max(0, stage.low_bytes + by),
            high_bytes=max(0, stage.high_bytes + by),
        )
        for stage in budget.stages
    )
    return replace(budget, peak=peak, steady_device_bytes=peak.device_bytes, stages=stages)
