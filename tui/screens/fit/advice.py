"""Advice on a job: changes that make it fit the GPUs that it is compared with, and its largest batch and sequence."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.advice.suggestion_search import BoundedSearch, LargestFitting, Suggestion, find_largest
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CancelledError, Verdict, VramtopError
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.capacity import DeviceCapacity, count_devices
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.board.fit_result import FitResult
from vramtop.monitor.host.available_ram import HostRam

if TYPE_CHECKING:
    from collections.abc import Iterable


_STEP_BITS = 27
"""Available memory counts in steps of 128 MiB: smaller changes leave advice as it is."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Decides whether budgets fit."""

    devices: tuple[DeviceCapacity, ...] = ()
    host: HostRam | None = None

    def fit(self, budget: Budget) -> FitResult:
        """Return the GPUs that the job would take, and whether their memory is enough."""
        found = check_fit(budget, self.devices)
        if self.host is None:
            return found
        return with_host_memory(
            found, budget, self.host, ranks=max(1, min(len(budget.ranks), count_devices(self.devices)))
        )

    def verdict(self, budget: Budget) -> Verdict:
        """Return only the verdict of ``fit``."""
        return self.fit(budget).verdict

    def tightest(self, budget: Budget) -> DeviceCapacity | None:
        """Return the GPU that would have the least memory left with the job on it; None: there is none."""
        found = self.fit(budget)
        chosen = [gpu for gpu in found.gpus if gpu.device in found.rank_devices]
        tightest = min(chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)
        return None if tightest is None else tightest.device


def capacity_fingerprint(suggestions: "Iterable[Suggestion]", budget: Budget, capacity: Capacity) -> list[object]:
    """Return what advice depends on; if it is unchanged, so is the advice. Cheap enough for every second."""
    tightest = capacity.tightest(budget)
    available = None if tightest is None else tightest.available_bytes
    steps = None if available is None else available >> _STEP_BITS
    return [capacity.verdict(budget), steps, *(capacity.verdict(suggestion.budget) for suggestion in suggestions)]


EstimateJob = Callable[[Job], Budget]
QuickEstimatorFor = Callable[[Job], EstimateJob]
"""Makes an estimate function for a search: it is quick, and takes only variants of the given job."""
_MAX_SUGGESTIONS = 6


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that could be made to a job, and their effect."""

    budget: Budget
    """The budget of the job as it is."""
    suggestions: "tuple[Suggestion, ...]" = ()
    """Changes that make the job fit, cheapest first, or that come closest to it; none if it fits as it is."""
    largest: LargestFitting | None = None
    """The largest batch and sequence that fit; None: the closed form does not know the model, or there is no GPU."""


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
    from vramtop.estimator.advice.suggestions import calibrated, suggest  # off the UI thread, with the first verdict
    from vramtop.estimator.learning.correction import carried, uncorrected

    token = current_token()

    def estimate(job: Job) -> Budget:
        if token.cancelled:
            raise CancelledError("the job has changed")
        return quick_estimate(job)

    scaled = calibrated(budget.job, uncorrected(budget), estimate)

    def carrying(job: Job) -> Budget:
        return carried(scaled(job), budget)

    if not capacity.devices:
        return Advice(budget=budget)
    found: tuple[Suggestion, ...] = ()
    is_measured = budget.learned is not None
    if capacity.verdict(budget) != "fits":
        search = carrying if is_measured else estimate
        gpus = count_devices(capacity.devices)
        found = suggest(budget.job, budget, search, capacity.verdict, gpus=gpus, most=_MAX_SUGGESTIONS)

    def fits(job: Job) -> bool:
        return capacity.verdict(carrying(job)) == "fits"

    longest = getattr(quick_estimate, "max_positions", None)
    bounded = fits if is_measured else BoundedSearch(scaled, capacity.verdict)
    return Advice(budget=budget, suggestions=found, largest=find_largest(budget.job, bounded, max_positions=longest))
