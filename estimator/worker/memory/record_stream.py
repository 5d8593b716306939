"""Streams of a GPU: how far they are known to have got, while the CPU issues work ahead of them.

The caching allocator gives a block that another stream uses (``record_stream``) back to its pool when the events
that it recorded at the release have passed, which it looks up at the next allocation (``free_block``,
``insert_events`` and ``process_events`` in ``c10/cuda/CUDACachingAllocator.cpp``). Here the CPU takes no time: an
event has passed when the CPU has waited for it or for work behind it, which it has to do when a stream's queue is full.
Standard library only.
"""

from __future__ import annotations

from collections import deque

MOST_LAUNCHES = 1024
"""Launches that a stream's queue holds; the CPU waits for room. Undocumented: about 1,000 for each stream, as people
have measured (forums.developer.nvidia.com/t/68937, stackoverflow.com/questions/53970187)."""
Reach = dict[int, int]
"""By stream, the position in the order of issue up to which its work is done."""


class StreamOrder:
    """Vector clocks of streams: what is done when a stream has done all that was issued to it."""

    def __init__(self) -> None:
        self._position = 0
        self._issued: Reach = {}
        """By stream, the position of its latest work."""
        self._implied: dict[int, Reach] = {}
        """By stream, what other streams have done once it has done all of its work."""
        self._known: Reach = {}
        """What the CPU has waited for."""
        self._queues: dict[int, deque[int]] = {}
        """By stream, the positions of its latest work."""

    def issue(self, stream: int) -> None:
        """Give a stream some work; the CPU waits where its queue is full."""
        self._position += 1
        self._issued[stream] = self._position
        queue = self._queues.setdefault(stream, deque())
        queue.append(self._position)
        if len(queue) > MOST_LAUNCHES:
            _merge(self._known, {stream: queue.popleft()})

    def record(self, stream: int) -> Reach:
        """Return what is done when an event that is recorded on a stream now has passed."""
        return {**self._implied.get(stream, {}), stream: self._issued.get(stream, 0)}

    def wait(self, stream: int, event: Reach) -> None:
        """Let a stream's later work wait for an event."""
        _merge(self._implied.setdefault(stream, {}), event)
        self.issue(stream)

    def synchronize(self, event: Reach) -> None:
        """Let the CPU wait for an event."""
        _merge(self._known, event)

    def has_passed(self, stream: int, event: Reach) -> bool:
        """Return True if the CPU knows that an event of this stream has passed."""
        return self._known.get(stream, 0) >= event[stream]


def _merge(reach: Reach, other: Reach) -> None:
    for stream, position in other.items():
        if reach.get(stream, 0) < position:
            reach[stream] = position
