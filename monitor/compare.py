"""Observed against predicted: is a running job inside its budget, and if not, which way is it off?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.budget import Budget
from vramtop.estimator.sizes import format_gib

Status = Literal["loading", "warming_up", "on_budget", "over", "under", "growing", "unknown"]

STATUS_WORDS: dict[Status, str] = {
    "loading": "loading",
    "warming_up": "warming up",
    "on_budget": "on budget",
    "over": "over",
    "under": "under",
    "growing": "growing",
    "unknown": "unknown",
}

_SETTLE_SECONDS = 120.0
"""A job that has not grown for so long is past its first steps: allocator caches do not grow in small pieces."""
_LONG_RUNNING_SECONDS = 900.0
_LOOK_SECONDS = 10.0
_GROWTH = 0.01
"""Less than this share of the budget is not growth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One process held against the budget of its job."""

    status: Status
    observed_bytes: int | None
    """What the process holds now, as NVML counts it."""
    peak_bytes: int | None
    """The most that has been seen; what happened between two looks stays unseen."""
    expected_bytes: int
    """What the budget says it will hold once it runs steadily."""
    sentence: str
    """The status in words, for people."""

    @property
    def difference_bytes(self) -> int | None:
        """Observed less expected; None when nothing was observed."""
        return None if self.observed_bytes is None else self.observed_bytes - self.expected_bytes

    @property
    def diverges(self) -> bool:
        """Someone should look at it."""
        return self.status in ("over", "under", "growing")


def compare(
    budget: Budget, history: Sequence[tuple[float, int | None]], *, elapsed_seconds: float | None = None
) -> Comparison:
    """Hold what a process has held, oldest first, against its budget.

    Args:
        budget: of the job that the process runs; per rank, and so per process.
        history: (Unix seconds, bytes or None) readings of this process, the newest last.
        elapsed_seconds: how long the process has been running, if that is known.
    """
    known = [(time, size) for time, size in history if size is not None]
    observed = history[-1][1] if history else None
    peak = max((size for _, size in known), default=None)
    if observed is None:
        status: Status = "unknown"
    elif observed > budget.peak.high_bytes:
        status = "over"
    elif observed >= budget.peak.low_bytes:
        status = "on_budget"
    elif _settled(known, budget, elapsed_seconds):
        status = "under"
    else:
        loading = budget.phase("loading")
        status = "loading" if loading and observed < loading.components.total_bytes else "warming_up"
    return Comparison(
        status=status,
        observed_bytes=observed,
        peak_bytes=peak,
        expected_bytes=budget.steady_device_bytes,
        sentence=_sentence(status, observed, budget),
    )


def _settled(known: Sequence[tuple[float, int]], budget: Budget, elapsed_seconds: float | None) -> bool:
    now = known[-1][0]
    step = budget.steady_device_bytes * _GROWTH
    last_growth, highest = known[0]
    for time, size in known:
        if size > highest + step:
            last_growth, highest = time, size
    quiet = now - last_growth
    long_running = elapsed_seconds is not None and elapsed_seconds > _LONG_RUNNING_SECONDS
    return quiet >= (_LOOK_SECONDS if long_running else _SETTLE_SECONDS)


def _sentence(status: Status, observed: int | None, budget: Budget) -> str:
    span = f"{format_gib(budget.peak.low_bytes)} to {format_gib(budget.peak.high_bytes)} GiB"
    match status:
        case "over":
            excess = (observed or 0) - budget.peak.high_bytes
            return f"holds {format_gib(excess)} GiB more than the budget's upper bound ({span})"
        case "under":
            lack = budget.peak.low_bytes - (observed or 0)
            return f"holds {format_gib(lack)} GiB less than the budget's lower bound ({span}) and does not grow"
        case "loading":
            return "has not yet loaded all of its weights"
        case "warming_up":
            return "has loaded its weights and not yet reached its first full step"
        case "on_budget":
            return f"holds what the budget says ({span})"
        case "growing":
            return "grows although it should be steady"
        case "unknown":
            return "its memory cannot be read"
