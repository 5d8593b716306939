"""Divergence: the memory of a running process compared with the budget of its job."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from vramtop.estimator.budget import Budget, Peak
from vramtop.estimator.causes.divergence import Divergence, Observation, explain_divergence
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import MIB, UNSEEN_BYTES, format_gib
from vramtop.estimator.job.job import Job

from ..host.plain_text import duration_text
from ..snapshot.memory_history import MemorySample, usual_interval
from ..snapshot.snapshot import GpuProcess, ProcessCounters

# The statuses: how a running job compares with its budget.


Status = Literal[
    "loading", "warming_up", "on_budget", "over", "under", "growing", "incomplete", "ended", "out_of_memory", "unknown"
]
"""``incomplete``: settings of the job are guessed, so what the process holds says nothing about its budget."""
DIVERGING: tuple[Status, ...] = ("over", "under", "growing", "out_of_memory")
"""The statuses that need attention."""


# Compares memory with the bounds of a budget, so that a figure that wobbles at a bound does not flicker.
#
# - Above the upper bound: by at least what is displayed as 0.1 GiB. It stays so until the memory is below the bound
#   by as much, or by one per cent of it if that is more.
# - The lower bound is reached by the highest reading so far, at latest where the rest is displayed as 0.0 GiB; once
#   reached, it stays so.
# - A status therefore changes at the first reading that is beyond a bound by 0.05 GiB, and a series within 0.05 GiB
#   of a bound changes it at most once.
#
# Growth has thresholds of its own (``memory_growth``), and so have pending jobs (``pending_rows``).


_HYSTERESIS_FRACTION = 0.01


def exceeds_budget(peak: Peak, size: int, *, exceeded: bool) -> bool:
    """Return True if memory is above the upper bound.

    Args:
        peak: of the budget.
        size: the memory now.
        exceeded: it was above at the reading before.
    """
    if exceeded:
        return size > peak.shown_high_bytes - max(UNSEEN_BYTES, _HYSTERESIS_FRACTION * peak.shown_high_bytes)
    return size >= peak.shown_high_bytes + UNSEEN_BYTES


def reaches_budget(budget: Budget, highest: int | None) -> bool:
    """Return True if the highest reading so far has reached the lower bound."""
    return highest is not None and highest > budget.low_bytes_before_evaluation - UNSEEN_BYTES


# Phases of a training run, detected from the memory of a process over time and from the steps that it reports.


RunPhase = Literal["started", "context", "loading", "warming_up", "steady"]
"""Process started; CUDA context created; weights being loaded; first steps; memory at its final level."""

STEADY_STEPS = 2
"""Steps after which memory is at its final level: the optimizer state is allocated at the end of the first."""
MIN_CHANGE_FRACTION = 0.01
"""Smallest change of memory that counts, as a fraction of the budget."""

_PHASES_IN_ORDER: tuple[RunPhase, ...] = ("started", "context", "loading", "warming_up", "steady")
_LOADED_FRACTION = 0.9
"""Fraction of the predicted weights at which they count as loaded."""
_UNCHANGED_SECONDS = 240.0
"""Time without a change after which a job that holds its weights is past its first steps."""
_SHORT_UNCHANGED_SECONDS = 60.0
"""Shorter time for a job that has run long enough for most jobs to be past their first steps."""
_MAX_START_SECONDS = 1200.0
"""Most jobs have read their data, loaded their weights and made a step within this time."""
_MAX_LOAD_SECONDS = 3600.0
"""A job that holds less than its weights may read data, or load from a slow disk, for this long."""
_PEAK_UNCHANGED_SECONDS = 30.0
"""Time without a new peak after which a job that has reached its budget is steady."""


class PhaseStart(msgspec.Struct, frozen=True):
    """The start of a phase."""

    time: float
    """Unix seconds."""
    phase: RunPhase
    reported: bool
    """Reported by the system or by the process itself; False: inferred from its memory."""


@dataclass(slots=True)
class PhaseTracker:
    """Follows one process on one GPU through the phases of its job; readings come in order of time.

    Args:
        budget: budget of the job.
        start_time: start of the process in Unix seconds; None: unknown.
        from_start: the GPU was already watched before the process held memory, so its first reading starts a phase.
    """

    budget: Budget
    start_time: float | None = None
    from_start: bool = False
    phase: RunPhase | None = None
    """None: the process was never seen to hold memory."""
    phase_starts: tuple[PhaseStart, ...] = ()
    peak_bytes: int | None = None
    """Highest reading."""
    over_since: float | None = None
    """Unix seconds of the first reading above the budget since the last one within it; None: it is within it."""
    _first_time: float | None = None
    _changed: tuple[float, int] = (0.0, 0)
    """Time and bytes of the last change of memory."""
    _rose: tuple[float, int] = (0.0, 0)
    """Time and bytes of the last rise of the peak."""
    _loaded_bytes: int = field(init=False)
    _loading_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        loading, context = self.budget.phase("loading"), self.budget.peak.components.context
        whole = loading.components.total_bytes if loading else 0
        self._loaded_bytes = round(_LOADED_FRACTION * whole)
        self._loading_bytes = context + max((whole - context) // 10, context // 2, 64 * MIB)
        if self.start_time is not None:
            self.phase_starts = (PhaseStart(self.start_time, "started", reported=True),)

    def add(self, time: float, size: int | None, counters: ProcessCounters | None = None) -> None:
        """Add a reading.

        Args:
            time: Unix seconds.
            size: bytes that the process holds; None: unknown.
            counters: counters that the process reports.
        """
        steps = counters.steps if counters else None
        if size is not None:
            self._add_size(time, size)
        elif steps is None or self._first_time is None:
            return
        phase, since = self._phase_at(time, size, steps)
        if self.phase is not None and _PHASES_IN_ORDER.index(phase) < _PHASES_IN_ORDER.index(self.phase):
            if self.phase != "steady" or self._reached_budget:  # memory goes up and down; phases do not
                return
            self.phase_starts = tuple(start for start in self.phase_starts if start.phase != "steady")
        if phase != self.phase:
            if self.phase is not None or self.from_start:
                reported = steps is not None and phase == "steady"
                self.phase_starts = (*self.phase_starts, PhaseStart(since, phase, reported=reported))
            self.phase = phase

    @property
    def _reached_budget(self) -> bool:
        return reaches_budget(self.budget, self.peak_bytes)

    def _add_size(self, time: float, size: int) -> None:
        min_change = self.budget.steady_device_bytes * MIN_CHANGE_FRACTION
        if self._first_time is None:
            self._first_time, self._changed, self._rose = time, (time, size), (time, size)
        if abs(size - self._changed[1]) > min_change:
            self._changed = time, size
        if size > self._rose[1] + min_change:
            self._rose = time, size
        self.peak_bytes = size if self.peak_bytes is None else max(self.peak_bytes, size)
        exceeds = exceeds_budget(self.budget.peak, size, exceeded=self.over_since is not None)
        self.over_since = (time if self.over_since is None else self.over_since) if exceeds else None

    @property
    def steady_since(self) -> float | None:
        """Unix seconds at which it became steady; None: it is not, or that was not seen."""
        return next((start.time for start in reversed(self.phase_starts) if start.phase == "steady"), None)

    def _phase_at(self, time: float, size: int | None, steps: int | None) -> tuple[RunPhase, float]:
        """Return the phase by this reading, and the time at which it started."""
        held = self._rose[1] if size is None else max(size, self._rose[1])
        loaded = held >= self._loaded_bytes
        if steps is not None and steps >= STEADY_STEPS:
            return "steady", time
        if steps is None and self._is_settled(time, loaded=loaded):
            return "steady", self._rose[0]
        if loaded or steps:
            return "warming_up", time
        return ("loading" if held >= self._loading_bytes else "context"), time

    def _is_settled(self, time: float, *, loaded: bool) -> bool:
        if self._reached_budget:
            return time - self._rose[0] >= _PEAK_UNCHANGED_SECONDS
        first = time if self._first_time is None else self._first_time
        running = time - (first if self.start_time is None else self.start_time)
        unchanged = time - self._changed[0]
        if unchanged < _SHORT_UNCHANGED_SECONDS:
            return False
        if not loaded:
            return running >= _MAX_LOAD_SECONDS
        return unchanged >= _UNCHANGED_SECONDS or running >= _MAX_START_SECONDS


# The highest memory use of a process, from the most exact source that is known.


class PeakUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory that a process has held on one GPU."""

    size_bytes: int
    source: Literal["probe", "accounting", "seen"]
    """Torch's own counters, the driver's accounting, or the highest reading (a peak between two readings is missed)."""
    interval_seconds: float | None = None
    """Time between two readings, if they are the only source."""


def peak_usage(seen_bytes: int | None, history: Sequence[MemorySample], process: GpuProcess | None) -> PeakUsage | None:
    """Return the peak memory of a process; None if no memory was ever seen.

    Args:
        seen_bytes: highest reading.
        history: recent readings, for their interval.
        process: latest reading of the process, with torch's counters if it runs with the probe.
    """
    seen = seen_bytes or 0
    if process and process.counters:
        from_probe = _probe_peak_bytes(process, process.counters)
        if from_probe is not None:
            return PeakUsage(size_bytes=max(from_probe, seen), source="probe")
    if process and process.peak_bytes is not None:
        return PeakUsage(size_bytes=max(process.peak_bytes, seen), source="accounting")
    if seen_bytes is None:
        return None
    return PeakUsage(size_bytes=seen_bytes, source="seen", interval_seconds=usual_interval(history))


def _probe_peak_bytes(process: GpuProcess, counters: ProcessCounters) -> int | None:
    """Return torch's peak of reserved bytes plus the present overhead outside of torch (CUDA context, libraries)."""
    peak, reserved, used = counters.reserved_peak_bytes, counters.reserved_bytes, process.used_bytes
    if peak is None or reserved is None or used is None:
        return None
    return peak + max(0, used - reserved)


# Detection of growth in memory that should be steady: a significant trend, and when it would reach a limit.


BUCKET_COUNT = 12
"""Number of equal time spans whose maxima are compared, because memory goes up and down within each step."""
MIN_DEVIATIONS = 3.3
"""Standard deviations of a significant trend: one series in two thousand gets there by chance."""
_MIN_SECONDS = 120.0
_ALMOST_CERTAIN_DEVIATIONS = 4
_SHORT_SECONDS = (15.0, 30.0, 60.0)
"""Spans in which growth counts if it fills the GPU within as long again: a fast leak is over before two minutes are."""
_LEAST_COVERED = 0.8
"""Share of such a span that the readings in it must cover."""


class GrowthTrend(msgspec.Struct, frozen=True, kw_only=True):
    """A significant growth of memory."""

    bytes_per_second: float
    deviations: float
    """Mann-Kendall statistic z: how far the readings are from an order without a trend, in standard deviations."""
    since: float
    """Unix seconds of the last reading before the growth."""

    def seconds_until(self, left_bytes: int) -> float:
        """Return the seconds in which this many more bytes will be allocated if the growth continues."""
        return max(0, left_bytes) / self.bytes_per_second

    @property
    def confidence(self) -> str:
        """Confidence in words: ``almost certain`` or ``likely``."""
        return "almost certain" if self.deviations >= _ALMOST_CERTAIN_DEVIATIONS else "likely"


def find_growth(
    readings: Sequence[tuple[float, int]],
    *,
    min_bytes: int,
    left_bytes: int | None = None,
    min_deviations: float = MIN_DEVIATIONS,
) -> GrowthTrend | None:
    """Return the trend of readings (Unix seconds, bytes), oldest first; None if they do not grow significantly.

    Memory may grow until the allocator settles: growth counts only if it continues in the last third of the readings.

    Args:
        readings: readings of the steady phase alone.
        min_bytes: smallest growth over all readings that is reported.
        left_bytes: free memory of the GPU; None: unknown. Growth that fills it soon counts after a few seconds.
        min_deviations: standard deviations of a significant trend.
    """
    if trend := _growth_over(readings, _MIN_SECONDS, min_bytes, min_deviations):
        return trend
    if left_bytes is None:
        return None
    for span in _SHORT_SECONDS:
        latest = [reading for reading in readings if reading[0] >= readings[-1][0] - span]
        trend = _growth_over(latest, _LEAST_COVERED * span, min_bytes, min_deviations)
        if trend is not None and trend.seconds_until(left_bytes) <= span:
            return trend
    return None


def _growth_over(
    readings: Sequence[tuple[float, int]], min_seconds: float, min_bytes: int, min_deviations: float
) -> GrowthTrend | None:
    if len(readings) < BUCKET_COUNT or readings[-1][0] - readings[0][0] < min_seconds:
        return None
    maxima = _bucket_maxima(readings)
    if len(maxima) < BUCKET_COUNT * 2 // 3:
        return None
    sizes = [size for _, size in maxima]
    last_third = sizes[-(len(sizes) // 3) - 1 :]
    if sizes[-1] - sizes[0] < min_bytes or last_third[-1] <= last_third[0]:
        return None
    deviations = _mann_kendall(sizes)
    if deviations < min_deviations:
        return None
    since = max(time for time, size in maxima if size <= sizes[0])
    return GrowthTrend(bytes_per_second=_median_slope(maxima), deviations=deviations, since=since)


def _bucket_maxima(readings: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the highest reading of each bucket, at the time of its middle; buckets without a reading are left out."""
    start, end = readings[0][0], readings[-1][0]
    span = (end - start) / BUCKET_COUNT
    maxima: dict[int, tuple[float, int]] = {}
    for moment, size in readings:
        bucket = min(BUCKET_COUNT - 1, int((moment - start) / span))
        if bucket not in maxima or size > maxima[bucket][1]:
            maxima[bucket] = (start + (bucket + 0.5) * span, size)
    return [maxima[bucket] for bucket in sorted(maxima)]


def _mann_kendall(sizes: Sequence[int]) -> float:
    """Return the Mann-Kendall test statistic z, corrected for ties (Kendall 1975); 0 for a falling series."""
    count = len(sizes)
    score = sum((b > a) - (b < a) for at, a in enumerate(sizes) for b in sizes[at + 1 :])
    ties = [sizes.count(size) for size in set(sizes)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return 0.0 if variance <= 0 or score <= 0 else (score - 1) / math.sqrt(variance)


def _median_slope(points: Sequence[tuple[float, int]]) -> float:
    """Return the Theil-Sen estimate of the slope: the median of the slopes of all pairs."""
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for at, a in enumerate(points) for b in points[at + 1 :])
    return slopes[len(slopes) // 2]


# Status of a running job: its memory compared with its budget (on budget, OVER, under, growing, loading, ...).


_LevelStatus = Literal["loading", "warming_up", "on_budget", "over", "under", "unknown"]
"""The statuses that follow from how much memory a process holds, without its trend and its end."""
_MIN_DEVIATIONS_STILL_GROWING = 2.3
"""Threshold for a job that was growing at the reading before, so that the status does not flicker: one in a hundred."""
MIN_GROWTH_BYTES = 64 * MIB
_DOUBTS: dict[Status, tuple[str, ...]] = {"over": ("more", "either"), "under": ("less", "either")}
"""Directions of the job's uncertainties that may be the cause of a status."""


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
    phase: RunPhase | None = None
    """Phase of the run; None: unknown."""
    trend: GrowthTrend | None = None
    """Trend of a job that grows although it should be steady."""
    left_budget_at: float | None = None
    """Unix seconds at which it went over its budget, or was steady below it; None: it did not, or that was not seen."""

    @property
    def difference_bytes(self) -> int | None:
        """Observed less expected; None if nothing was observed, or what is expected is a guess or not known."""
        if self.observed_bytes is None or self.expected_bytes is None or self.status == "incomplete":
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
        trend = _trend(tracker.budget, history, process, left_bytes=left, was_growing=previous == "growing")
    if trend is not None:
        status = "growing"
        sentence = _growth_sentence(trend, observed, left_bytes, " although it should be steady")
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
    trend = find_growth(
        known,
        min_bytes=max(MIN_GROWTH_BYTES, round(MIN_CHANGE_FRACTION * (observed or 0))),
        left_bytes=left_bytes,
        min_deviations=_MIN_DEVIATIONS_STILL_GROWING if previous == "growing" else MIN_DEVIATIONS,
    )
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
    return _incomplete(
        comparison, f", not judged: vramtop does not understand the settings that decide its {components}"
    )


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
    if reaches_budget(tracker.budget, max(observed, tracker.peak_bytes or 0)):
        return "on_budget"
    if tracker.phase == "steady":
        return "under"
    return "warming_up" if tracker.phase == "warming_up" else "loading"


def _trend(
    budget: Budget,
    history: Sequence[MemorySample],
    process: GpuProcess | None,
    *,
    left_bytes: int | None,
    was_growing: bool,
) -> GrowthTrend | None:
    """Return the trend of the readings since the job first reached its budget; None before its second step."""
    counters = process.counters if process else None
    if counters and counters.steps is not None and counters.steps < STEADY_STEPS:
        return None
    known = [(time, size) for time, size in history if size is not None]
    start = next((at for at, (_, size) in enumerate(known) if reaches_budget(budget, size)), len(known))
    return find_growth(
        known[start:],
        min_bytes=max(MIN_GROWTH_BYTES, round(MIN_CHANGE_FRACTION * budget.steady_device_bytes)),
        left_bytes=left_bytes,
        min_deviations=_MIN_DEVIATIONS_STILL_GROWING if was_growing else MIN_DEVIATIONS,
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


# Find the likely causes of a divergence: the observations of a process, passed to the estimator's cause search.


_KEPT_TENSORS = (
    "tensors stay alive from step to step: a loss summed without .item(), outputs or metrics kept in a list, hooks "
    "that store activations, evaluation results left on the GPU"
)
_GROWING_CACHE = (
    "or torch's cache grows because batch lengths vary: it stops growing at the longest batch, and "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True keeps it small"
)
_MOSTLY_TENSORS = 0.85
"""Share of reserved memory from which tensors, and not free blocks, are what grows."""


def diagnose(
    budget: Budget,
    comparison: Comparison,
    process: GpuProcess | None,
    estimate: Callable[[Job], Budget],
    *,
    assumed: Collection[str] = (),
) -> Divergence:
    """Return where the difference lies and the settings that would explain it; takes 50 ms to a second.

    Where measured runs have corrected the budget, each cause is searched with the part of that correction that a job so
    changed shares.

    Args:
        budget: budget of the job that the process runs.
        comparison: comparison of the process with that budget.
        process: latest reading of the process, with torch's counters if it runs with the probe.
        estimate: a quick estimate of a changed job; may raise VramtopError.
        assumed: dotted keys of the job that are defaults or inferences (``Finding.written`` is false).
    """
    if comparison.trend is not None:  # a setting changes a level, and no trend
        causes = _causes_of_growth(process)
        return Divergence(sentence=comparison.sentence, parts=(), explanations=(), further=causes, is_trend=True)
    peak, now = comparison.peak_usage, comparison.observed_bytes
    observation = Observation(
        device_bytes=now if peak is None or comparison.phase == "loading" else peak.size_bytes,
        now_bytes=now,
        loading=comparison.phase == "loading" and comparison.status != "out_of_memory",
        at_least=comparison.status == "out_of_memory",
        counters=process.counters if process else None,
        assumed=assumed,
    )
    return explain_divergence(budget, observation, _corrected_like(budget, estimate))


def _causes_of_growth(process: GpuProcess | None) -> tuple[str, ...]:
    """Return what makes memory grow without end, as far as torch's counters tell tensors from free cache."""
    counters = process.counters if process else None
    allocated, reserved = (counters.allocated_bytes, counters.reserved_bytes) if counters else (None, None)
    if process is None or allocated is None or not reserved:
        which = (
            "vramtop run -- COMMAND starts the job with a probe that tells the two apart and shows which lines hold "
            "memory"
        )
        return (_KEPT_TENSORS, _GROWING_CACHE, which)
    if allocated < _MOSTLY_TENSORS * reserved:
        return (_GROWING_CACHE, _KEPT_TENSORS)
    return (_KEPT_TENSORS, f"vramtop snapshot {process.pid} shows which lines hold the memory")


def _corrected_like(budget: Budget, estimate: Callable[[Job], Budget]) -> Callable[[Job], Budget]:
    if budget.learned is None:
        return estimate
    from vramtop.estimator.learning.correction import carried

    return lambda job: carried(estimate(job), budget)
