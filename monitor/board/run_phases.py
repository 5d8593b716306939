"""The phases of a training run, told apart by what a process holds over time, and by what it says of itself."""

from dataclasses import dataclass, field
from typing import Literal

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.sizes import MIB

from ..snapshot.snapshot import ProcessCounters

RunPhase = Literal["started", "context", "loading", "warming_up", "steady"]
"""Process started; CUDA context made; weights being loaded; first steps; memory is what it will be."""

STEADY_STEPS = 2
"""After so many steps memory is what it will be: optimizer states come into being at the end of the first."""
MIN_CHANGE_FRACTION = 0.01
"""Less than this share of the budget is no movement."""

_ORDER: tuple[RunPhase, ...] = ("started", "context", "loading", "warming_up", "steady")
_LOADED = 0.9
"""Of the weights, as predicted: one that holds so much has loaded them."""
_STILL_SECONDS = 240.0
"""A job that holds its weights and whose memory has not moved for so long is past its first steps."""
_STARTED_SECONDS = 1200.0
"""After so long most jobs have read their data, loaded and stepped: a shorter look is enough."""
_LOADED_SECONDS = 3600.0
"""A job that does not even hold its weights may read data, or load from a slow disk, for so long."""
_LOOK_SECONDS = 60.0
_REACHED_SECONDS = 30.0
"""A job that holds what its budget says is steady when its highest has not risen for so long."""


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """The begin of a phase."""

    time: float
    """Unix seconds."""
    phase: RunPhase
    reported: bool
    """By the system or by the process itself; False: seen in its memory."""


@dataclass(slots=True)
class PhaseTracker:
    """Follows one process on one GPU through the phases of its job; readings come in order of time.

    Args:
        budget: of its job.
        start_time: of the process, Unix seconds; None: not known.
        from_start: the process was looked for before it came to hold memory, so that its first reading is a begin.
    """

    budget: Budget
    start_time: float | None = None
    from_start: bool = False
    phase: RunPhase | None = None
    """None: it was never seen to hold anything."""
    phase_starts: tuple[PhaseStart, ...] = ()
    peak_bytes: int | None = None
    """The most that was seen."""
    _first: float | None = None
    _moved: tuple[float, int] = (0.0, 0)
    """When the memory last moved, and to what."""
    _rose: tuple[float, int] = (0.0, 0)
    """When the highest last rose, and to what."""
    _loaded_bytes: int = field(init=False)
    _begun_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        loading, context = self.budget.phase("loading"), self.budget.peak.components.context
        whole = loading.components.total_bytes if loading else 0
        self._loaded_bytes = round(_LOADED * whole)
        self._begun_bytes = context + max((whole - context) // 10, context // 2, 64 * MIB)
        if self.start_time is not None:
            self.phase_starts = (PhaseStart(self.start_time, "started", reported=True),)

    def add(self, time: float, size: int | None, counters: ProcessCounters | None = None) -> None:
        """Take a reading in.

        Args:
            time: Unix seconds.
            size: bytes that the process holds; None: not known, and nothing can be told by it.
            counters: what the process says of itself.
        """
        steps = counters.steps if counters else None
        if size is not None:
            self._move(time, size)
        elif steps is None or self._first is None:
            return
        phase, since = self._now(time, size, steps)
        if self.phase is not None and _ORDER.index(phase) < _ORDER.index(self.phase):
            if self.phase != "steady" or self._reached:  # memory goes up and down; phases do not
                return
            self.phase_starts = tuple(mark for mark in self.phase_starts if mark.phase != "steady")
        if phase != self.phase:
            if self.phase is not None or self.from_start:
                self.phase_starts = (
                    *self.phase_starts,
                    PhaseStart(since, phase, reported=steps is not None and phase == "steady"),
                )
            self.phase = phase

    @property
    def _reached(self) -> bool:
        """It has held what the budget says."""
        return self.peak_bytes is not None and self.peak_bytes >= self.budget.peak.low_bytes

    def _move(self, time: float, size: int) -> None:
        step = self.budget.steady_device_bytes * MIN_CHANGE_FRACTION
        if self._first is None:
            self._first, self._moved, self._rose = time, (time, size), (time, size)
        if abs(size - self._moved[1]) > step:
            self._moved = time, size
        if size > self._rose[1] + step:
            self._rose = time, size
        self.peak_bytes = size if self.peak_bytes is None else max(self.peak_bytes, size)

    def _now(self, time: float, size: int | None, steps: int | None) -> tuple[RunPhase, float]:
        """The phase by this reading, and since when."""
        held = self._rose[1] if size is None else max(size, self._rose[1])
        loaded = held >= self._loaded_bytes
        if steps is not None and steps >= STEADY_STEPS:
            return "steady", time
        if steps is None and self._settled(time, loaded=loaded):
            return "steady", self._rose[0]
        if loaded or steps:
            return "warming_up", time
        return ("loading" if held >= self._begun_bytes else "context"), time

    def _settled(self, time: float, *, loaded: bool) -> bool:
        if self._reached:
            return time - self._rose[0] >= _REACHED_SECONDS
        first = time if self._first is None else self._first
        running = time - (first if self.start_time is None else self.start_time)
        still = time - self._moved[0]
        if not loaded:
            return still >= _LOOK_SECONDS and running >= _LOADED_SECONDS
        return still >= _STILL_SECONDS or (still >= _LOOK_SECONDS and running >= _STARTED_SECONDS)
