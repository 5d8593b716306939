"""Observed against predicted: is a running job inside its budget, and if not, which way is it off?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.budget import Budget
from vramtop.estimator.sizes import MIB, format_gib

from .trend import Trend, growth

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
_STEADY_STEPS = 2
"""After so many steps memory is what it will be: optimizer states come into being at the end of the first."""
_BACK = 0.01
"""A job that was over its budget is so until it is below the bound by this share."""


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
    trend: Trend | None = None
    """Of a job that grows although it should be steady."""

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
    steps: int | None = None,
    left_bytes: int | None = None,
    previous: Status | None = None,
) -> Comparison:
    """Hold what a process has held, oldest first, against its budget.

    A job that has once held what the budget says is on budget also while it holds less, between two phases.

    Args:
        budget: of the job that the process runs; per rank, and so per process.
        history: (Unix seconds, bytes or None) readings of this process, the newest last.
        elapsed_seconds: how long the process has been running, if that is known.
        peak_bytes: the most that was seen before the oldest reading, if that is known.
        steps: training steps that have ended, if the process says so.
        left_bytes: what is free on the card, for the time that growth leaves.
        previous: the status before this reading, which a small move does not change.
    """
    known = [(time, size) for time, size in history if size is not None]
    observed = history[-1][1] if history else None
    peak = max((size for size in (peak_bytes, *(size for _, size in known)) if size is not None), default=None)
    status = _status(budget, known, observed, peak, elapsed_seconds=elapsed_seconds, steps=steps)
    if previous == "over" and status == "on_budget" and observed is not None:
        status = "over" if observed > budget.peak.high_bytes * (1 - _BACK) else status
    trend = _trend(budget, known, steps) if status in ("on_budget", "over") else None
    if trend is not None:
        status = "growing"
    return Comparison(
        status=status,
        observed_bytes=observed,
        peak_bytes=peak,
        expected_bytes=budget.steady_device_bytes,
        sentence=_sentence(status, observed, budget) if trend is None else _growing(trend, observed, left_bytes),
        trend=trend,
    )


def _status(
    budget: Budget,
    known: Sequence[tuple[float, int]],
    observed: int | None,
    peak: int | None,
    *,
    elapsed_seconds: float | None,
    steps: int | None,
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
    settled = _settled(known, budget, elapsed_seconds, loaded=loaded) if steps is None else steps >= _STEADY_STEPS
    if settled:
        return "under"
    return "warming_up" if loaded else "loading"


def _trend(budget: Budget, known: Sequence[tuple[float, int]], steps: int | None) -> Trend | None:
    """Of the readings since the job first held what its budget says; none before its second step."""
    if steps is not None and steps < _STEADY_STEPS:
        return None
    begun = next((at for at, (_, size) in enumerate(known) if size >= budget.peak.low_bytes), len(known))
    return growth(known[begun:], least_bytes=max(64 * MIB, round(_MOVED * budget.steady_device_bytes)))


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


def _growing(trend: Trend, observed: int | None, left_bytes: int | None) -> str:
    per_minute = format_gib(round(trend.bytes_per_second * 60))
    said = f"holds {format_gib(observed)} GiB and grows by {per_minute} GiB a minute although it should be steady"
    if left_bytes is None:
        return f"{said} ({trend.how_sure})"
    minutes = trend.seconds_until(left_bytes) / 60
    when = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    return f"{said}; the card is full in about {when} ({trend.how_sure})"
