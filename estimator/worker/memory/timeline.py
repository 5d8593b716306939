"""Replay of recorded allocations through the allocator model, with a timeline for plotting.

Standard library only.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from .allocator import CachingAllocator

    Event = tuple[Hashable, int | None, int]


class Point(NamedTuple):
    """Memory after the event with this index (0 is the first)."""

    event: int
    allocated_bytes: int
    reserved_bytes: int


class Timeline(NamedTuple):
    """Memory over a sequence of events."""

    points: list[Point]
    """In order; a selection that contains both peaks, and the lowest and highest allocation of every stretch."""
    events: int
    """Events replayed; fewer than all of them where memory ran out."""
    peak_allocated: Point | None
    """The first event with the most allocated; None: there were no events."""
    peak_reserved: Point | None
    retries: int
    """Flushes of the cache that were needed; then the GPU's memory, not the job, limits the reserved peak."""
    out_of_memory: str | None
    """Message of the allocator's error at the event with index `events`."""


def replay(
    events: Iterable[Event], allocator: CachingAllocator, max_points: int = 2000, *, keep: Iterable[int] = ()
) -> Timeline:
    """Feed `events` to `allocator`, which may hold memory already, and return the timeline.

    Args:
        events: `(key, size in bytes, stream)` allocates, `(key, None, what)` releases the allocation with this key
            (`CachingAllocator.free`; 0: at once). An allocation that fails ends the replay; the result reports it.
        allocator: the model.
        max_points: points in the result, 10 or more.
        keep: indices of events whose points are returned besides.

    Raises:
        ValueError: a key is allocated twice without a release.
        KeyError: a key is released that is not in use.
    """
    allocated, reserved = array("q"), array("q")
    retries = allocator.retries
    failure: str | None = None
    malloc, free = allocator.malloc, allocator.free
    for key, size, stream in events:
        if size is None:
            free(key, stream)
        else:
            try:
                malloc(key, size, stream)
            except MemoryError as error:
                failure = str(error)
                break
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
    peaks = [_first_highest(allocated), _first_highest(reserved)]
    kept = _selected_events(allocated, max_points - len(peaks)) | {at for at in peaks if at is not None}
    kept.update(at for at in keep if 0 <= at < len(allocated))
    return Timeline(
        points=[Point(at, allocated[at], reserved[at]) for at in sorted(kept)],
        events=len(allocated),
        peak_allocated=_point(peaks[0], allocated, reserved),
        peak_reserved=_point(peaks[1], allocated, reserved),
        retries=allocator.retries - retries,
        out_of_memory=failure,
    )


def _first_highest(values: Sequence[int]) -> int | None:
    return values.index(max(values)) if values else None


def _point(at: int | None, allocated: Sequence[int], reserved: Sequence[int]) -> Point | None:
    return None if at is None else Point(at, allocated[at], reserved[at])


def _selected_events(allocated: Sequence[int], max_points: int) -> set[int]:
    """Return all events, or both ends and the lowest and highest event of stretches of equal length."""
    total = len(allocated)
    if total <= max_points:
        return set(range(total))
    stretches = (max_points - 2) // 2
    kept = {0, total - 1}
    for number in range(stretches):
        start = total * number // stretches
        stretch = allocated[start : total * (number + 1) // stretches]
        kept.add(start + stretch.index(min(stretch)))
        kept.add(start + stretch.index(max(stretch)))
    return kept
