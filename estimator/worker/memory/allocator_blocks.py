"""Blocks and free lists of the allocator model, the memory of its device, and segments that expand."""

from __future__ import annotations

from bisect import bisect_left, insort

from .allocator_settings import MIB

MAX_SMALL_BYTES = MIB
"""Largest request of the small pool."""
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB
"""Segments for requests up to 1 MiB and for those of 1 to 10 MiB, and the steps by which expandable ones grow."""
ADDRESS_BITS = 64
"""Free blocks are sorted by `size << ADDRESS_BITS | address`: one integer compares faster than a pair."""
FREE, USED, UNMAPPED = range(3)
RELEASED, USED_ELSEWHERE, RETURNED = range(3)
"""What a release does: the block is free at once; it waits for another stream (``record_stream``); its wait is over."""


class Block:
    """A stretch of a segment: free, in use, or addresses without memory behind them."""

    __slots__ = ("address", "base", "next", "pool", "prev", "size", "state")

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

    def __init__(self, stream: int, *, small: bool, expandable: bool) -> None:
        self.stream = stream
        self.small = small
        self.max_remainder = 0 if small or expandable else MAX_SMALL_BYTES
        """Remainders up to this size are not split off; sizes are multiples of 512."""
        self.granule = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
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


SEGMENT_ALIGNMENT = 2 << 20
"""Bytes: sizes and addresses of large segments are multiples of it."""
UNLIMITED_BYTES = 1 << 62


class DeviceMemory:
    """Memory that the allocator takes from the device.

    Args:
        capacity_bytes: memory that can be reserved; None: unlimited.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity = UNLIMITED_BYTES if capacity_bytes is None else capacity_bytes
        self.reserved = 0
        """Bytes taken from the device, as `torch.cuda.memory_reserved`."""
        self.peak_reserved = 0
        self._next_address = SEGMENT_ALIGNMENT

    def reserve(self, size: int) -> bool:
        """Take `size` bytes from the device; False: it does not have them."""
        if self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def take_addresses(self, size: int) -> int:
        """Return the start of a new address range, above all earlier ones."""
        start = self._next_address
        self._next_address += -(-size // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
        return start


SEGMENT_ADDRESSES = 1 << 44
"""Bytes of addresses for an expandable segment; torch takes 9/8 of the device, which is enough as well."""


class ExpandableSegments:
    """Growth and shrinkage of the expandable segments of a device.

    Args:
        memory: of the device.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory

    def expand(self, pool: Pool, size: int) -> Block | None:
        """Map memory at the lowest address of the pool's segments with enough room; None: the device has no more."""
        block = self._first_room(pool, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size and block.next is not None:
            following = block.next
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # it has absorbed the block before it
        pool.remove(block)
        return block

    def unmap(self, block: Block) -> None:
        """Give the granules wholly inside a free block back to the device; the rest of the block stays free."""
        pool = block.pool
        first = -(-(block.address - block.base) // pool.granule) * pool.granule
        last = (block.address + block.size - block.base) // pool.granule * pool.granule
        if first >= last:
            return
        pool.remove(block)
        before = block.base + first - block.address
        if before:
            pool.add(block.split(before))
        if block.size > last - first:
            rest = block
            block = rest.split(last - first)
            pool.add(rest)
        self._memory.reserved -= block.size
        block.state = UNMAPPED
        for other in (block.prev, block.next):
            if other is not None and other.state == UNMAPPED:
                pool.unmapped.remove(other)
                block.absorb(other)
        if block.prev is not None or block.next is not None:
            pool.unmapped.append(block)
            pool.unmapped.sort(key=lambda block: block.address)

    def _first_room(self, pool: Pool, size: int) -> Block:
        """Return the first of adjoining unmapped and free blocks with enough room, in a new segment if necessary."""
        for unmapped in pool.unmapped:
            before = unmapped.prev
            first = unmapped if before is None or before.state == USED else before
            room = 0
            block: Block | None = first
            while room < size and block is not None and block.state != USED:
                room += block.size
                block = block.next
            if room >= size:
                return first
        space = -(-max(SEGMENT_ADDRESSES, size) // pool.granule) * pool.granule
        base = self._memory.take_addresses(space)
        segment = Block(base, space, UNMAPPED, pool, base)
        pool.unmapped.append(segment)  # its addresses are above all others
        return segment

    def _map(self, block: Block, size: int) -> bool:
        """Map the first `size` bytes of an unmapped block, in whole granules, and add them to the free blocks."""
        pool = block.pool
        mapped = -(-size // pool.granule) * pool.granule  # unmapped blocks start and end with a granule
        if not self._memory.reserve(mapped):
            return False
        at = pool.unmapped.index(block)
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, UNMAPPED, pool, block.base)
            rest.prev, rest.next = block, block.next
            if rest.next is not None:
                rest.next.prev = rest
            block.next = rest
            block.size = mapped
            pool.unmapped[at] = rest
        else:
            del pool.unmapped[at]
        block.state = FREE
        pool.add_merged(block)
        return True


def growable_bytes(block: Block) -> int:
    """Return the size of a free block with the unmapped addresses behind it."""
    beyond = block.next
    return block.size + (beyond.size if beyond is not None and beyond.state == UNMAPPED else 0)
