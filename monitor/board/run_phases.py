"""Phases of a training run, detected from the memory of a process over time and from the steps that it reports.

Memory is compared with the bounds of a budget so that a figure that wobbles at a bound does not flicker.

- Above the upper bound: by at least what is displayed as 0.1 GiB. It stays so until the memory is below the bound
  by as much, or by one per cent of it if that is more.
- The lower bound is reached by the highest reading so far, at latest where the rest is displayed as 0.0 GiB; once
  reached, it stays so.
- A status therefore changes at the first reading that is beyond a bound by 0.05 GiB, and a series within 0.05 GiB
  of a bound changes it at most once.

Growth has thresholds of its own (``growth``).
"""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from vramtop.estimator.budget import Budget, Peak
from vramtop.estimator.common.sizes import MIB, UNSEEN_BYTES

from ..snapshot.snapshot import ProcessCounters

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
    rose: tuple[float, int] = (0.0, 0)
    """Time and bytes of the last rise of the peak."""
    over_since: float | None = None
    """Unix seconds of the first reading above the budget since the last one within it; None: it is within it."""
    _first_time: float | None = None
    _changed: tuple[float, int] = (0.0, 0)
    """Time and bytes of the last change of memory."""
    _loaded_bytes: int = field(init=False)
    _loading_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        loading, context = self.budget.phase("loading"), self.budget.peak.components.context
        whole = loading.components.total_bytes if loading else 0
        self._loaded_bytes = round(_LOADED_FRACTION * whole)
        self._loading_bytes = context + max((whole - context) // 10, context // 2, 64 * MIB)
        if self.start_time is not None:
            self.phase_starts = (PhaseStart(self.start_time, "started"),)

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
                self.phase_starts = (*self.phase_starts, PhaseStart(since, phase))
            self.phase = phase

    @property
    def _reached_budget(self) -> bool:
        return reaches_budget(self.budget, self.peak_bytes)

    def _add_size(self, time: float, size: int) -> None:
        min_change = self.budget.steady_device_bytes * MIN_CHANGE_FRACTION
        if self._first_time is None:
            self._first_time, self._changed, self.rose = time, (time, size), (time, size)
        if abs(size - self._changed[1]) > min_change:
            self._changed = time, size
        if size > self.rose[1] + min_change:
            self.rose = time, size
        self.peak_bytes = size if self.peak_bytes is None else max(self.peak_bytes, size)
        exceeds = exceeds_budget(self.budget.peak, size, exceeded=self.over_since is not None)
        self.over_since = (time if self.over_since is None else self.over_since) if exceeds else None

    def _phase_at(self, time: float, size: int | None, steps: int | None) -> tuple[RunPhase, float]:
        """Return the phase by this reading, and the time at which it started."""
        held = self.rose[1] if size is None else max(size, self.rose[1])
        loaded = held >= self._loaded_bytes
        if steps is not None and steps >= STEADY_STEPS:
            return "steady", time
        if steps is None and self._is_settled(time, loaded=loaded):
            return "steady", self.rose[0]
        if loaded or steps:
            return "warming_up", time
        return ("loading" if held >= self._loading_bytes else "context"), time

    def _is_settled(self, time: float, *, loaded: bool) -> bool:
        if self._reached_budget:
            return time - self.rose[0] >= _PEAK_UNCHANGED_SECONDS
        first = time if self._first_time is None else self._first_time
        running = time - (first if self.start_time is None else self.start_time)
        unchanged = time - self._changed[0]
        if unchanged < _SHORT_UNCHANGED_SECONDS:
            return False
        if not loaded:
            return running >= _MAX_LOAD_SECONDS
        return unchanged >= _UNCHANGED_SECONDS or running >= _MAX_START_SECONDS
