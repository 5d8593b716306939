"""What jobs are held against on the fit screen: the chosen GPUs, and the RAM of their machine where it is known."""

from collections.abc import Iterable
from dataclasses import dataclass

from vramtop.estimator.advice.suggestions import Suggestion
from vramtop.estimator.budget.budget import Budget
from vramtop.monitor.fit.device_capacity import DeviceCapacity
from vramtop.monitor.fit.fit_check import check_fit, with_host_memory
from vramtop.monitor.fit.fit_result import FitResult, Verdict
from vramtop.monitor.host.host_memory import HostRam

from .sweep import GpuLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Says whether budgets fit."""

    rooms: tuple[DeviceCapacity, ...] = ()
    host: HostRam | None = None

    def fit(self, budget: Budget) -> FitResult:
        """Where the job would go, and whether that is enough."""
        found = check_fit(budget, self.rooms)
        if self.host is None:
            return found
        return with_host_memory(found, budget, self.host, ranks=max(1, min(len(budget.ranks), len(self.rooms))))

    def verdict(self, budget: Budget) -> Verdict:
        """In one word."""
        return self.fit(budget).verdict

    def limits(self, budget: Budget) -> GpuLimits:
        """What the GPU gives that would be the fullest with the job on it."""
        found = self.fit(budget)
        chosen = [gpu for gpu in found.gpus if gpu.device in found.rank_devices]
        room = min(chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)
        if room is None:
            return GpuLimits()
        return GpuLimits(available_bytes=room.device.available_bytes, card_bytes=room.device.total_bytes)


def capacity_fingerprint(suggestions: Iterable[Suggestion], budget: Budget, judge: Capacity) -> list[object]:
    """What of a verdict and of suggestions other GPUs would change; cheap enough to be looked at every second."""
    limits = judge.limits(budget)
    can = None if limits.available_bytes is None else limits.available_bytes >> 27  # by steps of 128 MiB
    return [judge.verdict(budget), can, *(judge.verdict(suggestion.budget) for suggestion in suggestions)]
