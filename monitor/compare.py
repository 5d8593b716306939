"""Observed against predicted: is a running job inside its budget, and if not, which way is it off?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.budget import Budget
from vramtop.estimator.sizes import format_gib

Status = Literal["loading", "warming_up", "on_budget", "over", "under", "growing", "unknown"]

_STILL_SECONDS = 240.0
"""A job that holds its weights and whose memory has not moved for so long is past its first steps."""
_STARTED_SECONDS = 1200.0
"""After so long most jobs have read their data, loaded and stepped: a shorter look is enough."""
_LOADED_SECONDS = 3600.0
"""A job that does not even hold its weights may read data, or load from a slow disk, for so long."""
_LOOK_SECONDS = 60.0
_MOVED = 0.01
"""Less than this share of the budget is no movement."""
_LOADED = 0.9
"""Of the weights, as predicted: one that holds so much has loaded them."""


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
    budget: Budget,
    history: Sequence[tuple[float, int | None]],
    *,
    elapsed_seconds: float | None = None,
    peak_bytes: int | None = None,
) -> Comparison:
    """Hold what a process has held, oldest first, against its budget.

    A job that has once held what the budget says is on budget also while it holds less, between two phases.

    Args:
        budget: of the job that the process runs; per rank, and so per process.
        history: (Unix seconds, bytes or None) readings of this process, the newest last.
        elapsed_seconds: how long the process has been running, if that is known.
        peak_bytes: the most that was seen before the oldest reading, if that is known.
    """
    known = [(time, size) for time, size in history if size is not None]
    observed = history[-1][1] if history else None
    peak = max((size for size in (peak_bytes, *(size for _, size in known)) if size is not None), default=None)
    status = _status(budget, known, observed, peak, elapsed_seconds)
    return Comparison(
        status=status,
        observed_bytes=observed,
        peak_bytes=peak,
        expected_bytes=budget.steady_device_bytes,
        sentence=_sentence(status, observed, budget),
    )


def _status(
    budget: Budget,
    known: Sequence[tuple[float, int]],
    observed: int | None,
    peak: int | None,
    elapsed_seconds: float | None,
) -> Status:
    low, high = budget.peak.low_bytes, budget.peak.high_bytes
    if observed is None:
        return "unknown"
    if observed > high:
        return "over"
    if observed >= low or (peak is not None and low <= peak <= high):
        return "on_budget"
    loading = budget.phase("loading")
    loaded = loading is None or observed >= _LOADED * loading.components.total_bytes
    if _settled(known, budget, elapsed_seconds, loaded=loaded):
        return "under"
    return "warming_up" if loaded else "loading"


def _settled(
    known: Sequence[tuple[float, int]], budget: Budget, elapsed_seconds: float | None, *, loaded: bool
) -> bool:
    now = known[-1][0]
    step = budget.steady_device_bytes * _MOVED
    moved_at, level = known[0]
    for time, size in known:
        if abs(size - level) > step:
            moved_at, level = time, size
    still = now - moved_at
    running = now - known[0][0] if elapsed_seconds is None else elapsed_seconds
    if not loaded:
        return still >= _LOOK_SECONDS and running >= _LOADED_SECONDS
    return still >= _STILL_SECONDS or (still >= _LOOK_SECONDS and running >= _STARTED_SECONDS)


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
        case "on_budget" if observed is not None and observed < budget.peak.low_bytes:
            return f"has held what the budget says ({span}), and holds less at the moment"
        case "on_budget":
            return f"holds what the budget says ({span})"
        case "growing":
            return "grows although it should be steady"
        case "unknown":
            return "its memory cannot be read"
