"""Observed against predicted: is a running job inside its budget, and if not, which way is it off?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.common.sizes import MIB, format_gib

from ..snapshot.history import MemorySample, usual_interval
from ..snapshot.snapshot import GpuProcess
from .memory_growth import MIN_DEVIATIONS, GrowthTrend, find_growth
from .run_phases import MIN_CHANGE_FRACTION, STEADY_STEPS, PhaseTracker, RunPhase

Status = Literal["loading", "warming_up", "on_budget", "over", "under", "growing", "ended", "out_of_memory", "unknown"]

_BACK = 0.01
"""A job that was over its budget is so until it is below the bound by this share."""
_STILL_GROWING = 2.3
"""Standard deviations that a job which was growing must keep, so that it does not flicker: one in a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakUsage:
    """The most that a process has held on one GPU."""

    size_bytes: int
    source: Literal["probe", "accounting", "seen"]
    """Told by torch's own counters, by the driver, or the highest of the readings: what was between two is unseen."""
    interval_seconds: float | None = None
    """How far apart the readings are, where they are all that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One process held against the budget of its job."""

    status: Status
    observed_bytes: int | None
    """What the process holds now, as NVML counts it."""
    peak_usage: PeakUsage | None
    """The most that it has held; None where it was never known to hold anything."""
    expected_bytes: int
    """What the budget says it will hold once it runs steadily."""
    sentence: str
    """The status in words, for people."""
    phase: RunPhase | None = None
    """Where in its run the process is; None: that cannot be told."""
    trend: GrowthTrend | None = None
    """Of a job that grows although it should be steady."""

    @property
    def difference_bytes(self) -> int | None:
        """Observed less expected; None when nothing was observed."""
        return None if self.observed_bytes is None else self.observed_bytes - self.expected_bytes

    @property
    def diverges(self) -> bool:
        """Someone should look at it."""
        return self.status in ("over", "under", "growing", "out_of_memory")


def compare(
    tracker: PhaseTracker,
    history: Sequence[MemorySample],
    *,
    process: GpuProcess | None = None,
    left_bytes: int | None = None,
    previous: Status | None = None,
) -> Comparison:
    """Hold what a process has held against its budget.

    A job that has once held what the budget says is on budget also while it holds less, between two phases.

    Args:
        tracker: of the process; it has taken all these readings in.
        history: (Unix seconds, bytes or None) of the last minutes, the newest last.
        process: what the driver and the process itself tell beside that.
        left_bytes: what is free on the card, for the time that growth leaves.
        previous: the status before this reading, which a small move does not change.
    """
    budget = tracker.budget
    observed = history[-1][1] if history else None
    status = _status(tracker, observed)
    if previous == "over" and status == "on_budget" and observed is not None:
        status = "over" if observed > budget.peak.high_bytes * (1 - _BACK) else status
    settled = status in ("on_budget", "over")
    trend = _trend(tracker, history, process, lasting=previous == "growing") if settled else None
    if trend is not None:
        status = "growing"
    return Comparison(
        status=status,
        observed_bytes=observed,
        peak_usage=peak_usage(tracker.peak_bytes, history, process),
        expected_bytes=budget.steady_device_bytes,
        sentence=_sentence(status, observed, tracker) if trend is None else _growing(trend, observed, left_bytes),
        phase=tracker.phase if observed is not None else None,
        trend=trend,
    )


def peak_usage(seen_bytes: int | None, history: Sequence[MemorySample], process: GpuProcess | None) -> PeakUsage | None:
    """The most that a process has held, by who knows best.

    Torch's own peak of what it reserved is told by the probe; what the process holds beside that (context, libraries)
    is taken to have been the same then as now.
    """
    counters = process.counters if process else None
    if process and counters and None not in (counters.reserved_peak_bytes, counters.reserved_bytes, process.used_bytes):
        beside = (process.used_bytes or 0) - (counters.reserved_bytes or 0)
        told = (counters.reserved_peak_bytes or 0) + max(0, beside)
        return PeakUsage(size_bytes=max(told, seen_bytes or 0), source="probe")
    if process and process.peak_bytes is not None:
        return PeakUsage(size_bytes=max(process.peak_bytes, seen_bytes or 0), source="accounting")
    if seen_bytes is None:
        return None
    return PeakUsage(size_bytes=seen_bytes, source="seen", interval_seconds=usual_interval(history))


def _status(tracker: PhaseTracker, observed: int | None) -> Status:
    peak, low, high = tracker.peak_bytes, tracker.budget.peak.low_bytes, tracker.budget.peak.high_bytes
    if observed is None:
        return "unknown"
    if observed > high:
        return "over"
    if observed >= low or (peak is not None and peak >= low):
        return "on_budget"
    if tracker.phase == "steady":
        return "under"
    return "warming_up" if tracker.phase == "warming_up" else "loading"


def _trend(
    tracker: PhaseTracker, history: Sequence[MemorySample], process: GpuProcess | None, *, lasting: bool
) -> GrowthTrend | None:
    """Of the readings since the job first held what its budget says; none before its second step."""
    counters = process.counters if process else None
    if counters and counters.steps is not None and counters.steps < STEADY_STEPS:
        return None
    budget = tracker.budget
    known = [(time, size) for time, size in history if size is not None]
    begun = next((at for at, (_, size) in enumerate(known) if size >= budget.peak.low_bytes), len(known))
    least = max(64 * MIB, round(MIN_CHANGE_FRACTION * budget.steady_device_bytes))
    return find_growth(known[begun:], least_bytes=least, deviations=_STILL_GROWING if lasting else MIN_DEVIATIONS)


def _sentence(status: Status, observed: int | None, tracker: PhaseTracker) -> str:
    budget = tracker.budget
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
            held = f"{format_gib(tracker.peak_bytes)} GiB" if (tracker.peak_bytes or 0) > budget.peak.high_bytes else ""
            return f"has held {held or 'what the budget says'} ({span}), and holds less at the moment"
        case "on_budget":
            return f"holds what the budget says ({span})"
        case "growing":
            return "grows although it should be steady"
        case "ended":
            return "has ended"
        case "out_of_memory":
            return "has run out of memory"
        case "unknown":
            return "its memory cannot be read"


def _growing(trend: GrowthTrend, observed: int | None, left_bytes: int | None) -> str:
    per_minute = format_gib(round(trend.bytes_per_second * 60))
    said = f"holds {format_gib(observed)} GiB and grows by {per_minute} GiB a minute although it should be steady"
    if left_bytes is None:
        return f"{said} ({trend.confidence})"
    minutes = trend.seconds_until(left_bytes) / 60
    when = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    return f"{said}; the card is full in about {when} ({trend.confidence})"
