"""The GPUs with which the fit check compares a job, and the search for advice on it."""

from collections.abc import Callable, Iterable

import msgspec

from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CancelledError, Verdict, VramtopError
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.capacity import DeviceCapacity, count_devices
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.board.fit_result import FitResult

from ...job.advice import Advice, EstimateJob, find_advice

_STEP_BITS = 27
"""Available memory counts in steps of 128 MiB: smaller changes leave advice as it is."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Decides whether budgets fit."""

    devices: tuple[DeviceCapacity, ...] = ()
    host: int | None = None
    """Bytes of RAM; None: not compared."""

    def fit(self, budget: Budget) -> FitResult:
        """Return the GPUs that the job would take, and whether their memory is enough."""
        found = check_fit(budget, self.devices)
        if self.host is None:
            return found
        ranks = max(1, min(budget.job.parallel.processes, count_devices(self.devices)))
        return with_host_memory(found, budget, self.host, ranks=ranks)

    def verdict(self, budget: Budget) -> Verdict:
        """Return only the verdict of ``fit``."""
        return self.fit(budget).verdict

    def tightest(self, budget: Budget) -> DeviceCapacity | None:
        """Return the GPU that would have the least memory left with the job on it; None: there is none."""
        tightest = self.fit(budget).tightest
        return None if tightest is None else tightest.device


def capacity_fingerprint(suggestions: "Iterable[Suggestion]", budget: Budget, capacity: Capacity) -> list[object]:
    """Return what advice depends on; if it is unchanged, so is the advice. Cheap enough for every second."""
    tightest = capacity.tightest(budget)
    available = None if tightest is None else tightest.available_bytes
    steps = None if available is None else available >> _STEP_BITS
    return [capacity.verdict(budget), steps, *(capacity.verdict(suggestion.budget) for suggestion in suggestions)]


QuickEstimatorFor = Callable[[Job], EstimateJob]
"""Makes an estimate function for a search: it is quick, and takes only variants of the given job."""


def advice_on(budget: Budget, capacity: Capacity, quick_estimator: QuickEstimatorFor) -> Advice:
    """Search for advice on the budget's job; the result is empty if the quick estimate has no rule for its model.

    Raises:
        CancelledError: the search was cancelled (see ``CancelToken``).
    """
    if not capacity.devices:
        return Advice(budget=budget)
    try:
        quick = quick_estimator(budget.job)
        return find_advice(budget, capacity.verdict, quick, gpus=count_devices(capacity.devices))
    except CancelledError:
        raise
    except VramtopError:
        return Advice(budget=budget)
