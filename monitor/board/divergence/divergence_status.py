"""Status of a running job: its memory compared with its budget (on budget, OVER, under, growing, loading, ...)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import MIB, UNSEEN_BYTES, format_gib

from ...snapshot import GpuProcess, MemorySample
from .bounds import exceeds_budget, reaches_budget
from .memory_growth import MIN_DEVIATIONS, GrowthTrend, find_growth
from .peak_usage import PeakUsage, peak_usage
from .run_phases import MIN_CHANGE_FRACTION, STEADY_STEPS, PhaseTracker, RunPhase
from .status import DIVERGING, Status

_LevelStatus = Literal["loading", "warming_up", "on_budget", "over", "under", "unknown"]
"""The statuses that follow from how much memory a process holds, without its trend and its end."""
_MIN_DEVIATIONS_STILL_GROWING = 2.3
"""Threshold for a job that was growing at the reading before, so that the status does not flicker: one in a hundred."""
_MIN_GROWTH_BYTES = 64 * MIB
_MAX_SHOWN_MINUTES = 120
_DOUBTS: dict[Status, tuple[str, ...]] = {"over": ("more", "either"), "under": ("less", "either")}
"""Directions of the job's uncertainties that may be the cause of a status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One process compared with the budget of its job."""

    status: Status
    observed_bytes: int | None
    """Memory of the process now, as NVML counts it."""
    peak_usage: PeakUsage | None
    """The most that it has held; None: it was never seen to hold any."""
    expected_bytes: int
    """Memory in the steady state, as the budget predicts it."""
    sentence: str
    """The status in words."""
    phase: RunPhase | None = None
    """Phase of the run; None: unknown."""
    trend: GrowthTrend | None = None
    """Trend of a job that grows although it should be steady."""
    left_budget_at: float | None = None
    """Unix seconds at which it went over its budget, or was steady below it; None: it did not, or that was not seen."""

    @property
    def difference_bytes(self) -> int | None:
        """Observed less expected; None if nothing was observed, or what is expected is a guess."""
        if self.observed_bytes is None or self.status == "incomplete":
            return None
        return self.observed_bytes - self.expected_bytes

    @property
    def diverges(self) -> bool:
        """True if the status needs attention."""
        return self.status in DIVERGING


def compare_with_budget(
    tracker: PhaseTracker,
    history: Sequence[MemorySample],
    *,
    process: GpuProcess | None = None,
    left_bytes: int | None = None,
    previous: Status | None = None,
) -> Comparison:
    """Compare the memory of a process with the budget of its job.

    A job that has once reached its budget stays on budget while it holds less between two phases.

    Args:
        tracker: phases of the process; it has seen all these readings.
        history: (Unix seconds, bytes or None) of the last minutes, the latest last.
        process: latest reading of the process, with torch's counters if it runs with the probe.
        left_bytes: free memory of the GPU, to predict when growth fills it.
        previous: status at the reading before, which a small change does not alter.
    """
    observed = history[-1][1] if history else None
    level = _status(tracker, observed, previous)
    status: Status = level
    sentence = _sentence(level, observed, tracker)
    trend = None
    if status in ("on_budget", "over"):
        trend = _trend(tracker.budget, history, process, was_growing=previous == "growing")
    if trend is not None:
        status, sentence = "growing", _growth_sentence(trend, observed, left_bytes)
    return Comparison(
        status=status,
        observed_bytes=observed,
        peak_usage=peak_usage(tracker.peak_bytes, history, process),
        expected_bytes=tracker.budget.steady_device_bytes,
        sentence=sentence,
        phase=tracker.phase if observed is not None else None,
        trend=trend,
        left_budget_at=tracker.steady_since if status == "under" else tracker.over_since,
    )


def as_far_as_known(comparison: Comparison, budget: Budget, missing: Sequence[str]) -> Comparison:
    """Return a comparison that claims nothing that rests on guesses.

    Args:
        comparison: the process compared with the budget.
        budget: the budget.
        missing: job keys that the budget guesses.
    """
    if comparison.status in ("unknown", "incomplete"):
        return comparison
    if missing:
        keys = (key.rpartition(".")[2].replace("micro_batch", "micro-batch").replace("_", " ") for key in missing)
        return _incomplete(comparison, f"; missing: {', '.join(keys)}")
    import msgspec  # not before there is a run

    directions = _DOUBTS.get(comparison.status, ())
    doubted = [name for name, each in msgspec.structs.asdict(budget.job.unsure).items() if each in directions]
    if not doubted:
        return comparison
    components = " and ".join(doubted)
    return _incomplete(comparison, f", not judged: how its settings decide its {components} is not understood")


def _incomplete(comparison: Comparison, reason: str) -> Comparison:
    observed = comparison.observed_bytes
    held = "its memory is not known" if observed is None else f"holds {format_gib(observed)} GiB"
    return replace(comparison, status="incomplete", sentence=f"{held}{reason}", trend=None, left_budget_at=None)


def _status(tracker: PhaseTracker, observed: int | None, previous: Status | None) -> _LevelStatus:
    """Return the status before growth is considered."""
    if observed is None:
        return "unknown"
    if exceeds_budget(tracker.budget.peak, observed, exceeded=previous == "over"):
        return "over"
    if reaches_budget(tracker.budget.peak, max(observed, tracker.peak_bytes or 0)):
        return "on_budget"
    if tracker.phase == "steady":
        return "under"
    return "warming_up" if tracker.phase == "warming_up" else "loading"


def _trend(
    budget: Budget, history: Sequence[MemorySample], process: GpuProcess | None, *, was_growing: bool
) -> GrowthTrend | None:
    """Return the trend of the readings since the job first reached its budget; None before its second step."""
    counters = process.counters if process else None
    if counters and counters.steps is not None and counters.steps < STEADY_STEPS:
        return None
    known = [(time, size) for time, size in history if size is not None]
    start = next((at for at, (_, size) in enumerate(known) if reaches_budget(budget.peak, size)), len(known))
    return find_growth(
        known[start:],
        min_bytes=max(_MIN_GROWTH_BYTES, round(MIN_CHANGE_FRACTION * budget.steady_device_bytes)),
        min_deviations=_MIN_DEVIATIONS_STILL_GROWING if was_growing else MIN_DEVIATIONS,
    )


def _sentence(status: _LevelStatus, observed: int | None, tracker: PhaseTracker) -> str:
    low, high = tracker.budget.peak.low_bytes, tracker.budget.peak.shown_high_bytes
    span = f"{format_gib(low)} to {format_gib(high)} GiB"
    match status:
        case "over" if observed is not None and observed < high + UNSEEN_BYTES:
            return f"was above its upper bound ({span}), now just below it"
        case "over":
            excess = format_gib((observed or 0) - high)
            return f"{excess} GiB above its upper bound of {format_gib(high)}"
        case "under":
            lack = format_gib(low - (observed or 0))
            return f"{lack} GiB below its lower bound of {format_gib(low)}, not growing"
        case "loading":
            return "still loading weights"
        case "warming_up":
            return "weights loaded, first full step not finished"
        case "on_budget" if observed is not None and observed < low:
            peak = tracker.peak_bytes or 0
            reached = f"{format_gib(peak)} GiB" if peak >= high + UNSEEN_BYTES else "its budget"
            return f"reached {reached} ({span}), holds less now"
        case "on_budget":
            return f"expected {span}"
        case "unknown":
            return "its memory cannot be read"


def _growth_sentence(trend: GrowthTrend, observed: int | None, left_bytes: int | None) -> str:
    per_minute = format_gib(round(trend.bytes_per_second * 60))
    growth = (
        f"holds {format_gib(observed)} GiB and has been growing by {per_minute} GiB per minute since "
        f"{time.strftime('%H:%M', time.localtime(trend.since))} although it should be steady"
    )
    if left_bytes is None:
        return f"{growth} ({trend.confidence})"
    minutes = trend.seconds_until(left_bytes) / 60
    when = f"{minutes:.0f} minutes" if minutes < _MAX_SHOWN_MINUTES else f"{minutes / 60:.0f} hours"
    return f"{growth}; the GPU is full in about {when} ({trend.confidence})"
