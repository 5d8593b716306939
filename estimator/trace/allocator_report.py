"""What torch's caching allocator makes of a traced job: its settings, the card's room, and what to say about them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..common.sizes import format_gib
from ..job.gpu_catalogue import Gpu

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch looks them up (c10/cuda/CUDAAllocatorConfig.h, 2.13); one that is set ends the search."""


class ReservedMemory(msgspec.Struct, frozen=True):
    """What the allocator's model holds over the traced steps. Bytes."""

    peak: int
    retries: int
    """How often it had to give its cache back because the card was full."""
    out_of_memory: str | None
    """The sentence of its error, where even that did not help."""
    timeline: tuple[tuple[int, int], ...]
    """(event, bytes), ascending."""
    followed: tuple[str, ...]
    """Its settings that change something."""
    notes: tuple[str, ...]
    """Settings that could not be followed, and why."""

    def at(self, events: Sequence[int]) -> tuple[int, ...]:
        """Bytes after each of these events, ascending; what was held last goes on where the replay had ended."""
        found, last, position = [], 0, 0
        for event in events:
            while position < len(self.timeline) and self.timeline[position][0] <= event:
                last = self.timeline[position][1]
                position += 1
            found.append(last)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCapacity:
    """A card for the allocator."""

    label: str
    device_bytes: int
    """The whole card."""
    capacity_bytes: int
    """What torch can get of it: less what the driver keeps and what the process takes outside of torch."""


def allocator_settings(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that sets the allocator and its text; None where there is none."""
    return next(((name, environ[name]) for name in _VARIABLES if name in environ), None)


def capacity_on(gpu: Gpu | None, memory_bytes: int | None, taken_bytes: int) -> AllocatorCapacity | None:
    """The room on a card that nobody else uses; None where its size is not known.

    Args:
        gpu: the card.
        memory_bytes: its size, where it is not the card's own.
        taken_bytes: what the process holds besides its traced allocations.
    """
    total = memory_bytes or (gpu.total_bytes if gpu else None)
    if total is None:
        return None
    kept = (gpu.reserved_bytes or 0) if gpu and total == gpu.total_bytes else 0
    label = gpu.label if gpu else f"a card of {format_gib(total)} GiB"
    return AllocatorCapacity(label=label, device_bytes=total, capacity_bytes=max(0, total - kept - taken_bytes))


def replay_allocations(
    allocations: str, marks: Sequence[int], conf: str | None, room: AllocatorCapacity
) -> ReservedMemory:
    """A trace's allocations under these settings on that card.

    Args:
        allocations: as the worker packed them.
        marks: events at which the figure is wanted in any case.
        conf: the settings.
        room: the card.

    Raises:
        ValueError: the allocations cannot be unpacked.
    """
    from ..worker.memory.reserved_memory import replay_reserved, unpack_allocations

    options: dict[str, Any] = {
        "conf": conf,
        "capacity_bytes": room.capacity_bytes,
        "device_bytes": room.device_bytes,
    }
    return msgspec.convert(replay_reserved(unpack_allocations(allocations), marks, options), ReservedMemory)


def allocator_assumptions(variable: str | None, held: ReservedMemory) -> Iterator[str]:
    """What was taken for granted of the allocator."""
    if held.followed:
        yield f"The allocator is set by {variable}: {', '.join(held.followed)}."


def allocator_warnings(held: ReservedMemory, unlimited_bytes: int, room: AllocatorCapacity | None) -> Iterator[str]:
    """Settings that could not be followed, and what becomes of the job on a card that is nearly too small."""
    for note in held.notes:
        yield f"{note[0].upper()}{note[1:]}."
    if room is None:
        return
    if held.out_of_memory:
        yield f"On {room.label}, torch's allocator runs {held.out_of_memory}."
    elif held.retries:
        times = "once" if held.retries == 1 else f"{held.retries} times"
        yield (
            f"On {room.label}, the allocator would have to free its cache {times} in two steps: they take longer, and "
            f"little is missing to running out of memory; with more room it would reserve "
            f"{format_gib(unlimited_bytes)} GiB."
        )
