"""Blocks of the model of torch's caching allocator, and the lists of free ones. Standard library only."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .allocator_settings import Settings

MIB = 1 << 20
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
BY_SIZE = 64
"""Free blocks are sorted by `size << BY_SIZE | address`: one integer compares faster than a pair."""

FREE, USED, UNMAPPED = range(3)


class Block:
    """A stretch of a segment: free, in use, or addresses without memory behind them."""

    __slots__ = ("address", "base", "idle_since", "next", "pool", "prev", "size", "state")

    def __init__(self, address: int, size: int, state: int, pool: Pool, base: int = 0) -> None:
        self.address = address
        self.size = size
        self.state = state
        self.pool = pool
        self.base = base
        """Start of the expandable segment it lies in."""
        self.prev: Block | None = None
        """Neighbours in the same segment."""
        self.next: Block | None = None
        self.idle_since = 0
        """Searches of the large pools until it became free (garbage collection)."""

    def split(self, size: int) -> Block:
        """Cut the first `size` bytes off; the block itself is what remains."""
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


class Pool:
    """Free blocks of one stream and one kind of request."""

    __slots__ = ("blocks", "granule", "kept", "keys", "small", "stream", "unmapped")

    def __init__(self, stream: int, *, small: bool, settings: Settings) -> None:
        self.stream = stream
        self.small = small
        self.kept = 0 if small or settings.expandable_segments else SMALL_REQUEST
        """Remainders up to this size stay part of the block; sizes are multiples of 512."""
        self.granule = SMALL_SEGMENT if small else settings.large_segment_bytes
        """Step by which an expandable segment grows."""
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []
        """By address. Empty without expandable segments."""

    def put(self, block: Block) -> None:
        """Add a free block."""
        key = block.size << BY_SIZE | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def take(self, block: Block) -> None:
        """Remove one of the free blocks, for use or because it is about to change."""
        key = block.size << BY_SIZE | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def settle(self, block: Block) -> None:
        """Put a block that has become free, together with its free neighbours."""
        other = block.prev
        if other is not None and other.state == FREE:
            self.take(other)
            join(block, other)
        other = block.next
        if other is not None and other.state == FREE:
            self.take(other)
            join(block, other)
        self.put(block)


def growable(block: Block) -> int:
    """Size of a free block with the unmapped addresses behind it."""
    beyond = block.next
    return block.size + (beyond.size if beyond is not None and beyond.state == UNMAPPED else 0)


def join(block: Block, other: Block) -> None:
    """Let `block` absorb a neighbour in its segment."""
    block.size += other.size
    if other is block.prev:
        block.address = other.address
        block.prev = other.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.prev = block
