"""Reserved memory of a trace: its allocations replayed through the allocator model, and packed to be kept.

Standard library only: the worker replays them once, and vramtop again for a GPU on which they do not fit.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from .allocator import CachingAllocator
from .allocator_settings import AllocatorSettings

Allocation = tuple[int, tuple[int, "int | None", int]]
"""Index of the event, and ``(record, bytes, stream)``, or ``(record, None, what)`` for its release."""
WORDS_PER_ALLOCATION = 4


def replay_reserved(
    allocations: Sequence[Allocation], marks: Sequence[int], options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the peak of reserved bytes over two steps, of which the second reuses the cache of the first.

    An allocation that fails ends the replay.

    Args:
        allocations: in order.
        marks: indices of events after which the reserved bytes are wanted, too (``at``).
        options: ``conf``: the allocator's settings as in its environment variable; ``capacity_bytes``: GPU memory that
            torch can get; unlimited by default.
    """
    options = options or {}
    settings = AllocatorSettings.from_conf(options.get("conf"))
    allocator = CachingAllocator(settings, options.get("capacity_bytes"))
    reserved = array("q", [0])
    failure: str | None = None
    malloc, free = allocator.malloc, allocator.free
    for _, (key, size, stream) in allocations:
        if size is None:
            free(key, stream)
        else:
            try:
                malloc(key, size, stream)
            except MemoryError as error:
                failure = str(error)
                break
        reserved.append(allocator.reserved)
    indices = [index for index, _ in allocations[: len(reserved) - 1]]
    return {
        "peak": max(reserved),
        "at": [reserved[bisect_right(indices, mark)] for mark in marks],
        "retries": allocator.retries,
        "out_of_memory": failure,
        "notes": list(settings.notes),
    }


def pack_allocations(allocations: Sequence[Allocation]) -> str:
    """Return the allocations as text, for a machine with the same byte order."""
    columns = (
        [index for index, _ in allocations],
        [event[0] for _, event in allocations],
        [-1 if event[1] is None else event[1] for _, event in allocations],
        [event[2] for _, event in allocations],
    )
    # neighbours are alike in a column: at level 1 half as long, and in a tenth of the time, as the rows at level 6
    return base64.b64encode(zlib.compress(b"".join(array("q", column).tobytes() for column in columns), 1)).decode()


def unpack_allocations(text: str) -> list[Allocation]:
    """Return the allocations that ``pack_allocations`` packed.

    Raises:
        ValueError: the text is not packed allocations.
    """
    words = array("q")
    try:
        words.frombytes(zlib.decompress(base64.b64decode(text, validate=True)))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    length = len(words) // WORDS_PER_ALLOCATION
    columns = [words[at * length : (at + 1) * length] for at in range(WORDS_PER_ALLOCATION)]
    return [
        (index, (record, None if size < 0 else size, stream))
        for index, record, size, stream in zip(*columns)  # noqa: B905 - not in Python 3.9
    ]
