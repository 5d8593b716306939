"""torch's caching allocator in a traced estimate: its settings, its capacity on a GPU, and sentences about both."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..common.sizes import format_gib
from ..job.gpu_catalogue import Gpu


class ReservedMemory(msgspec.Struct, frozen=True):
    """Bytes that the allocator's model reserves over the traced steps."""

    peak: int
    retries: int
    """Number of times that it freed its cache because the GPU was full."""
    out_of_memory: str | None
    """Its error message, if memory was too small even so."""
    at: tuple[int, ...]
    """Bytes after each event that was asked for; after the end of the replay, the last ones."""
    notes: tuple[str, ...]
    """Settings that could not be applied, and why."""


class AllocatorCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a GPU for the allocator."""

    label: str
    capacity_bytes: int
    """Memory that torch can allocate: without the driver's, and without that of the process outside of torch."""


def capacity_on(gpu: Gpu | None, memory_bytes: int | None, taken_bytes: int) -> AllocatorCapacity | None:
    """Return the allocator's capacity on a GPU without other processes; None if its size is unknown.

    Args:
        gpu: the GPU.
        memory_bytes: total memory, if it is not that of ``gpu``.
        taken_bytes: bytes of the process besides its traced allocations.
    """
    total = memory_bytes or (gpu.total_bytes if gpu else None)
    if total is None:
        return None
    kept = (gpu.reserved_bytes or 0) if gpu and total == gpu.total_bytes else 0
    label = gpu.label if gpu else f"a GPU of {format_gib(total)} GiB"
    return AllocatorCapacity(label=label, capacity_bytes=max(0, total - kept - taken_bytes))


def replay_allocations(
    allocations: str, marks: Sequence[int], conf: str | None, capacity: AllocatorCapacity
) -> ReservedMemory:
    """Return the memory that the allocator reserves for a trace's allocations.

    Args:
        allocations: as the worker packed them.
        marks: events after which the bytes are wanted, too.
        conf: the allocator's settings.
        capacity: its capacity.

    Raises:
        ValueError: the allocations cannot be unpacked.
    """
    from ..worker.memory.replay import replay_reserved, unpack_allocations

    options: dict[str, Any] = {"conf": conf, "capacity_bytes": capacity.capacity_bytes}
    return msgspec.convert(replay_reserved(unpack_allocations(allocations), marks, options), ReservedMemory)


def allocator_warnings(held: ReservedMemory, unlimited_bytes: int, capacity: AllocatorCapacity | None) -> Iterator[str]:
    """Yield settings that could not be applied, and how the job runs on a GPU that is nearly too small."""
    for note in held.notes:
        yield f"{note[0].upper()}{note[1:]}."
    if capacity is None:
        return
    if held.out_of_memory:
        yield f"On {capacity.label}, torch's allocator runs {held.out_of_memory}."
    elif held.retries:
        times = "once" if held.retries == 1 else f"{held.retries} times"
        yield (
            f"On {capacity.label}, the allocator has to free its cache {times} in two steps. This is slow, and memory "
            f"is nearly full; a larger GPU would have {format_gib(unlimited_bytes)} GiB reserved."
        )
