"""Judges changed jobs, and replays the steps only of those whose verdict depends on what the allocator reserves.

The allocator never reserves less than is allocated at the peak. A job that does not fit with that much does not
fit, and needs no replay; nor does one that is at best tight, where only those that fit matter. The answers are
those of replaying every job, if the judge gives a budget with more bytes no better verdict.
"""

from collections.abc import Callable
from typing import TypeVar

from ..budget import Budget, Peak, RankPeak
from ..common.errors import Verdict
from ..common.records import replace
from ..common.reserved_memory import with_reserved_memory
from ..job.job import Job

Figures = TypeVar("Figures", Peak, RankPeak)
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

    def least(self, job: Job, more: int = 0) -> tuple[Budget, Verdict]:
        """Return the budget with the least that may be reserved (``is_least``), and the best verdict that there may be.

        Args:
            job: the job to judge.
            more: bytes that it is taken to need besides, in the verdict and the budget.

        Raises:
            VramtopError: what the estimate raises.
        """
        with with_reserved_memory("least"):
            budget = shifted(self.estimate(job), more)
        return budget, self.judge(budget)

    def fits(self, job: Job) -> bool:
        """Return True if a job fits: it is replayed only where the least that it may take fits."""
        budget, verdict = self.least(job)
        return verdict == "fits" and self.exact(budget)[1] == "fits"

    def exact(self, budget: Budget) -> tuple[Budget, Verdict]:
        """Return the budget and the verdict with the reserved memory of a replay."""
        if budget.is_least:
            budget = self.estimate(budget.job)
        return budget, self.judge(budget)


def shifted(budget: Budget, by: int) -> Budget:
    """Return the budget with ``by`` bytes added to all device figures; its components are unchanged."""
    if not by:
        return budget
    peak, stages = _shifted(budget.peak, by), tuple(_shifted(stage, by) for stage in budget.stages)
    return replace(budget, peak=peak, steady_device_bytes=peak.device_bytes, stages=stages)


def _shifted(figures: Figures, by: int) -> Figures:
    """Return a peak with ``by`` bytes added, none of its figures below 0."""
    return replace(
        figures,
        device_bytes=max(0, figures.device_bytes + by),
        low_bytes=max(0, figures.low_bytes + by),
        high_bytes=max(0, figures.high_bytes + by),
    )
