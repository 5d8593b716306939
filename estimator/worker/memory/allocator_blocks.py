"""Blocks and free lists of the allocator model. Standard library only."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .allocator_settings import AllocatorSettings

MIB = 1 << 20
MAX_SMALL_BYTES = MIB
"""Largest request of the small pool."""
SMALL_SEGMENT_BYTES = 2 * MIB
ADDRESS_BITS = 64
"""Free blocks are sorted by `size << ADDRESS_BITS | address`: one integer compares faster than a pair."""

FREE, USED, UNMAPPED = range(3)

RELEASED, USED_ELSEWHERE, RETURNED = range(3)
"""What a release does: the block is free at once; it waits for another stream (``record_stream``); its wait is over."""


class Block:
    """A stretch of a segment: free, in use, or addresses without memory behind them."""

    __slots__ = ("address", "base", "idle_since", "next", "pool", "prev", "size", "state")

    def __init__(self, address: int, size: int, state: int, pool: Pool, base: int = 0) -> None:
        self.address = address
        self.size = size
        self.state = state
        self.pool = pool
        self.base = base
        """Start of the expandable segment that contains it."""
        self.prev: Block | None = None
        """Neighbours in the same segment."""
        self.next: Block | None = None
        self.idle_since = 0
        """Number of searches of the large pools when it became free (garbage collection)."""

    def split(self, size: int) -> Block:
        """Cut off the first `size` bytes and return them; this block becomes the remainder."""
        front = Block(self.address, size, self.state, self.pool, self.base)
        before = self.prev
        if before is not None:
            before.next = front
            front.prev = before
        front.next = self
        self.prev = front
        self.address += size
        self.size -= size
        return front

    def absorb(self, neighbour: Block) -> None:
        """Extend this block over a neighbour in its segment."""
        self.size += neighbour.size
        if neighbour is self.prev:
            self.address = neighbour.address
            self.prev = neighbour.prev
            if self.prev is not None:
                self.prev.next = self
        else:
            self.next = neighbour.next
            if self.next is not None:
                self.next.prev = self


class Pool:
    """Free blocks of one stream and one kind of request."""

    __slots__ = ("blocks", "granule", "keys", "max_remainder", "small", "stream", "unmapped")

    def __init__(self, stream: int, *, small: bool, settings: AllocatorSettings) -> None:
        self.stream = stream
        self.small = small
        self.max_remainder = 0 if small or settings.expandable_segments else MAX_SMALL_BYTES
        """Remainders up to this size are not split off; sizes are multiples of 512."""
        self.granule = SMALL_SEGMENT_BYTES if small else settings.large_segment_bytes
        """Bytes by which an expandable segment grows."""
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []
        """Sorted by address. Empty without expandable segments."""

    def add(self, block: Block) -> None:
        """Add a free block."""
        key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        """Remove a free block that will be used or changed."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def add_merged(self, block: Block) -> None:
        """Add a block that has become free, merged with its free neighbours."""
        other = block.prev
        if other is not None and other.state == FREE:
            self.remove(other)
            block.absorb(other)
        other = block.next
        if other is not None and other.state == FREE:
            self.remove(other)
            block.absorb(other)
        self.add(block)
