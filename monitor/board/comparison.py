"""Comparison of a running process with the budget of its job: on budget, OVER, under, growing, loading."""

import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import MIB, UNSEEN_BYTES, format_gib

from ..host.plain_text import duration_text
from ..snapshot.memory_history import MemorySample, usual_interval
from ..snapshot.snapshot import GpuProcess
from .growth import MIN_DEVIATIONS, GrowthTrend, find_growth
from .run_phases import MIN_CHANGE_FRACTION, STEADY_STEPS, PhaseTracker, RunPhase, exceeds_budget, reaches_budget

Status = Literal[
    "loading", "warming_up", "on_budget", "over", "under", "growing", "incomplete", "ended", "out_of_memory", "unknown"
]
"""``incomplete``: settings of the job are guessed, so what the process holds says nothing about its budget."""
DIVERGING: tuple[Status, ...] = ("over", "under", "growing", "out_of_memory")
"""The statuses that need attention."""


class PeakUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory that a process has held on one GPU."""

    size_bytes: int
    source: Literal["probe", "accounting", "seen"]
    """Torch's own counters, the driver's accounting, or the highest reading (a peak between two readings is missed)."""
    interval_seconds: float | None = None
    """Time between two readings, if they are the only source."""


_MIN_DEVIATIONS_STILL_GROWING = 2.3
"""Threshold for a job that was growing at the reading before, so that the status does not flicker: one in a hundred."""
MIN_GROWTH_BYTES = 64 * MIB


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One process compared with the budget of its job."""

    status: Status
    observed_bytes: int | None
    """Memory of the process now, as NVML counts it."""
    peak_usage: PeakUsage | None
    """The most that it has held; None: it was never seen to hold any."""
    expected_bytes: int | None
    """Memory in the steady state, as the budget predicts it; None: there is no budget."""
    sentence: str
    """The status in words."""
    is_guess: bool = False
    """What is expected rests on settings that are missing, or not understood."""
    phase: RunPhase | None = None
    """Phase of the run; None: unknown."""
    trend: GrowthTrend | None = None
    """Trend of a job that grows although it should be steady."""
    left_budget_at: float | None = None
    """Unix seconds at which it went over its budget, or was steady below it; None: it did not, or that was not seen."""

    @property
    def difference_bytes(self) -> int | None:
        """Observed less expected; None if nothing was observed, or what is expected is a guess or not known."""
        if self.observed_bytes is None or self.expected_bytes is None or self.is_guess:
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
        left = left_bytes if status == "over" else None  # within its budget it may still reach its level quickly
        counters = process.counters if process else None
        if counters is None or counters.steps is None or counters.steps >= STEADY_STEPS:
            known = [(time, size) for time, size in history if size is not None]
            start = next((at for at, (_, size) in enumerate(known) if reaches_budget(tracker.budget, size)), len(known))
            trend = _trend(known[start:], tracker.budget.steady_device_bytes, left, previous)
    if trend is not None:
        status = "growing"
        sentence = _growth_sentence(trend, observed, left_bytes, " although it should be steady")
    steady_since = next((start.time for start in reversed(tracker.phase_starts) if start.phase == "steady"), None)
    return Comparison(
        status=status,
        observed_bytes=observed,
        peak_usage=peak_usage(tracker.peak_bytes, history, process),
        expected_bytes=tracker.budget.steady_device_bytes,
        sentence=sentence,
        phase=tracker.phase if observed is not None else None,
        trend=trend,
        left_budget_at=steady_since if status == "under" else tracker.over_since,
    )


def compare_without_budget(
    history: Sequence[MemorySample], *, left_bytes: int | None, previous: Status | None
) -> Comparison | None:
    """Return that a process without a budget grows, all that can be told of it; None: it does not.

    Args:
        history: (Unix seconds, bytes or None) of the last minutes, the latest last.
        left_bytes: free memory of the GPU; None: unknown.
        previous: status at the reading before.
    """
    known = [(time, size) for time, size in history if size is not None]
    observed = history[-1][1] if history else None
    trend = _trend(known, observed or 0, left_bytes, previous)
    if trend is None:
        return None
    return Comparison(
        status="growing",
        observed_bytes=observed,
        peak_usage=peak_usage(max(size for _, size in known), history, None),
        expected_bytes=None,
        sentence=_growth_sentence(trend, observed, left_bytes),
        trend=trend,
    )


_DOUBTS: dict[Status, tuple[str, ...]] = {"over": ("more", "either"), "under": ("less", "either")}
"""Directions of the job's uncertainties that may be the cause of a status."""


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
    directions = _DOUBTS.get(comparison.status, ())
    doubted = [name for name, each in budget.job.unsure.directions().items() if each in directions]
    if not doubted:
        return comparison
    components = " and ".join(doubted)
    return _incomplete(
        comparison, f", not judged: vramtop does not understand the settings that decide its {components}"
    )


def _incomplete(comparison: Comparison, reason: str) -> Comparison:
    observed = comparison.observed_bytes
    held = "its memory is not known" if observed is None else f"holds {format_gib(observed)} GiB"
    sentence = f"{held}{reason}"
    return replace(comparison, status="incomplete", sentence=sentence, is_guess=True, trend=None, left_budget_at=None)


_LevelStatus = Literal["loading", "warming_up", "on_budget", "over", "under", "unknown"]
"""The statuses that follow from how much memory a process holds, without its trend and its end."""


def _status(tracker: PhaseTracker, observed: int | None, previous: Status | None) -> _LevelStatus:
    """Return the status before growth is considered."""
    if observed is None:
        return "unknown"
    if exceeds_budget(tracker.budget.peak, observed, exceeded=previous == "over"):
        return "over"
    if reaches_budget(tracker.budget, max(observed, tracker.peak_bytes or 0)):
        return "on_budget"
    if tracker.phase == "steady":
        return "under"
    return "warming_up" if tracker.phase == "warming_up" else "loading"


def _trend(
    readings: Sequence[tuple[float, int]], usual_bytes: int, left_bytes: int | None, previous: Status | None
) -> GrowthTrend | None:
    """Return the trend of readings that are usually at this level."""
    return find_growth(
        readings,
        min_bytes=max(MIN_GROWTH_BYTES, round(MIN_CHANGE_FRACTION * usual_bytes)),
        left_bytes=left_bytes,
        min_deviations=_MIN_DEVIATIONS_STILL_GROWING if previous == "growing" else MIN_DEVIATIONS,
    )


def _sentence(status: _LevelStatus, observed: int | None, tracker: PhaseTracker) -> str:
    low, high = tracker.budget.low_bytes_before_evaluation, tracker.budget.peak.shown_high_bytes
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
            return "vramtop cannot read its memory use"


def _growth_sentence(trend: GrowthTrend, observed: int | None, left_bytes: int | None, against: str = "") -> str:
    """Return when the GPU is full, which is read first, and how the process grows, against what was expected."""
    per_minute = format_gib(round(trend.bytes_per_second * 60))
    since = time.strftime("%H:%M", time.localtime(trend.since))
    full = "" if left_bytes is None else f"GPU full in about {duration_text(trend.seconds_until(left_bytes))}: "
    grown = f"has grown by {per_minute} GiB per minute since {since}{against} ({trend.confidence})"
    return f"{full}{grown}, holds {format_gib(observed)} GiB"


def peak_usage(seen_bytes: int | None, history: Sequence[MemorySample], process: GpuProcess | None) -> PeakUsage | None:
    """Return the peak memory of a process; None if no memory was ever seen.

    Args:
        seen_bytes: highest reading.
        history: recent readings, for their interval.
        process: latest reading of the process, with torch's counters if it runs with the probe.
    """
    seen = seen_bytes or 0
    if process and process.counters and process.used_bytes is not None:
        peak, reserved = process.counters.reserved_peak_bytes, process.counters.reserved_bytes
        if peak is not None and reserved is not None:
            outside = max(0, process.used_bytes - reserved)  # of torch: CUDA context, libraries
            return PeakUsage(size_bytes=max(peak + outside, seen), source="probe")
    if process and process.peak_bytes is not None:
        return PeakUsage(size_bytes=max(process.peak_bytes, seen), source="accounting")
    if seen_bytes is None:
        return None
    return PeakUsage(size_bytes=seen_bytes, source="seen", interval_seconds=usual_interval(history))
