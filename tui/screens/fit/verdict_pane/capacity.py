"""The capacity a job is compared with: free memory of the chosen GPUs, and RAM of their host if it is known."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.monitor.board.fit import (
    DeviceCapacity,
    FitResult,
    Verdict,
    check_fit,
    count_devices,
    with_host_memory,
)
from vramtop.monitor.host import HostRam

from ...what_if import GpuLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vramtop.estimator.advice import Suggestion

_STEP_BITS = 27
"""Available memory counts in steps of 128 MiB: smaller changes leave advice as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
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

    def limits(self, budget: Budget) -> GpuLimits:
        """Return the limits of the GPU that would have the least memory left with the job on it."""
        found = self.fit(budget)
        chosen = [gpu for gpu in found.gpus if gpu.device in found.rank_devices]
        tightest = min(chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)
        if tightest is None:
            return GpuLimits()
        return GpuLimits(available_bytes=tightest.device.available_bytes, gpu_bytes=tightest.device.total_bytes)


def capacity_fingerprint(suggestions: "Iterable[Suggestion]", budget: Budget, capacity: Capacity) -> list[object]:
    """Return what advice depends on; if it is unchanged, so is the advice. Cheap enough for every second."""
    available = capacity.limits(budget).available_bytes
    steps = None if available is None else available >> _STEP_BITS
    return [capacity.verdict(budget), steps, *(capacity.verdict(suggestion.budget) for suggestion in suggestions)]
