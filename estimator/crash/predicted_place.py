"""Finds the point of the predicted step at which an allocation failed."""

from dataclasses import asdict, dataclass
from typing import Any

from ..budget import Budget, PhaseName
from .records import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPlace:
    """A moment of the predicted step."""

    phase: PhaseName
    """Part of the step in which the allocation failed."""
    event: int | None
    """On the traced timeline, the first moment of that phase at which as much is allocated as was held and asked for
    at the failure; None: the step was not traced, or the phase never holds as much."""
    share: float | None
    """Position of that moment among the step's allocations, from 0 to 1; None: unknown."""
    predicted_bytes: int
    """The most that the prediction allocates in that phase."""
    held_bytes: int
    """Allocated bytes when it failed, including the allocation that failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the place for ``--json``."""
        return asdict(self)


def find_place(budget: Budget, failure: Failure) -> PredictedPlace | None:
    """Return where the failed allocation stands on the predicted step.

    None if neither the traceback nor the budget says the phase, or the figures are missing.
    """
    memory, phase = failure.memory, failure.phase
    if memory is None or memory.allocated_bytes is None or phase is None:
        return None
    held = memory.allocated_bytes + (memory.tried_bytes or 0)
    line = budget.timeline
    known = budget.phase(phase)
    if line is None or all(mark.name != phase for mark in line.phases):
        if known is None:
            return None
        return PredictedPlace(
            phase=phase, event=None, share=None, predicted_bytes=known.allocated_bytes, held_bytes=held
        )
    first, last = line.events[0], line.events[-1]
    ends = [mark.event for mark in line.phases[1:]] + [last + 1]
    spans = [(mark.event, end) for mark, end in zip(line.phases, ends, strict=True) if mark.name == phase]
    most, found = 0, None
    for at, level in zip(line.events, line.levels, strict=True):
        if not any(begin <= at < end for begin, end in spans):
            continue
        allocated = level.total_bytes - line.outside_bytes
        most = max(most, allocated)
        if found is None and allocated >= held:
            found = at
    share = None if found is None else (found - first) / max(1, last - first)
    return PredictedPlace(phase=phase, event=found, share=share, predicted_bytes=most, held_bytes=held)
