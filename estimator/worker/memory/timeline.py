"""Replays recorded allocations through a model of the allocator, and keeps how memory went for plotting.

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
    """What was held after the event with this index (0 is the first)."""

    event: int
    allocated_bytes: int
    reserved_bytes: int


class Timeline(NamedTuple):
    """How memory went over a sequence of events."""

    points: list[Point]
    """In order; a selection in which every stretch keeps its lowest and highest allocation, and both peaks are kept."""
    events: int
    """How many were replayed: fewer than there were, where memory ran out."""
    peak_allocated: Point | None
    """The first event with the most allocated; None: there were no events."""
    peak_reserved: Point | None
    retries: int
    """Flushes of the cache that were needed: the reserved peak is then capped by the card, not by the job."""
    out_of_memory: str | None
    """The sentence of the allocator's error, at the event with index `events`."""


def replay(
    events: Iterable[Event], allocator: CachingAllocator, points: int = 2000, *, keep: Iterable[int] = ()
) -> Timeline:
    """Feed `events` to `allocator`, which may hold memory already, and return at most `points` points (10 or more).

    Points at the events of `keep` are returned besides.

    `(key, size in bytes, stream)` allocates, `(key, None, 0)` releases what `key` names.
    An allocation that fails ends the replay and is told in the result.

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
            free(key)
        else:
            try:
                malloc(key, size, stream)
            except MemoryError as error:
                failure = str(error)
                break
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
    peaks = [_first_highest(allocated), _first_highest(reserved)]
    kept = _selection(allocated, points - len(peaks)) | {at for at in peaks if at is not None}
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


def _selection(allocated: Sequence[int], points: int) -> set[int]:
    """Events to keep: all, or of each of many stretches of equal length the lowest and the highest; and both ends."""
    total = len(allocated)
    if total <= points:
        return set(range(total))
    stretches = (points - 2) // 2
    kept = {0, total - 1}
    for number in range(stretches):
        stretch = range(total * number // stretches, total * (number + 1) // stretches)
        kept.add(min(stretch, key=allocated.__getitem__))
        kept.add(max(stretch, key=allocated.__getitem__))
    return kept
