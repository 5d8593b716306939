"""What the allocator would hold for the allocations of a trace, and those allocations in a form to keep.

Standard library only: the worker replays them as they come, and vramtop again for a card on which they are too many.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from .allocator import CachingAllocator
from .allocator_settings import Settings
from .timeline import replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    Allocation = tuple[int, tuple[int, "int | None", int]]
    """Index of the event, and ``(record, bytes, stream)``, or ``(record, None, 0)`` for its release."""

_POINTS = 500
_WORDS = 4


def reserved(
    allocations: Sequence[Allocation], marks: Sequence[int], options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Most bytes reserved and how they went, over both steps: the allocator keeps what the first left free.

    Args:
        allocations: in order.
        marks: indices of events at which the figure is wanted in any case.
        options: ``conf``: the allocator's settings as its environment variable has them; ``capacity_bytes``: what torch
            can get of the card, ``device_bytes``: the whole card; without end when left out.
    """
    options = options or {}
    settings = Settings.from_conf(options.get("conf"))
    allocator = CachingAllocator(settings, options.get("capacity_bytes"), device_bytes=options.get("device_bytes"))
    indices = [index for index, _ in allocations]
    kept = {bisect_right(indices, mark) - 1 for mark in marks}
    line = replay((event for _, event in allocations), allocator, _POINTS, keep=kept)
    return {
        "peak": line.peak_reserved.reserved_bytes if line.peak_reserved else 0,
        "retries": line.retries,
        "out_of_memory": line.out_of_memory,
        "timeline": [[indices[point.event], point.reserved_bytes] for point in line.points],
        "followed": list(settings.followed),
        "notes": list(settings.notes),
    }


def pack(allocations: Sequence[Allocation]) -> str:
    """The allocations as text, for a machine of the same byte order."""
    words = array("q")
    for index, (record, size, stream) in allocations:
        words.extend((index, record, -1 if size is None else size, stream))
    return base64.b64encode(zlib.compress(words.tobytes(), 6)).decode()


def unpack(text: str) -> list[Allocation]:
    """What ``pack`` packed.

    Raises:
        ValueError: it is no such text.
    """
    words = array("q")
    try:
        words.frombytes(zlib.decompress(base64.b64decode(text, validate=True)))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    columns = [words[at::_WORDS] for at in range(_WORDS)]
    return [
        (index, (record, None if size < 0 else size, stream))
        for index, record, size, stream in zip(*columns)  # noqa: B905 - not in Python 3.9
    ]
