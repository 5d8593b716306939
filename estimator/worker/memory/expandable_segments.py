"""Expandable segments of the allocator model: address ranges in which memory is mapped and unmapped by granules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .allocator_blocks import FREE, UNMAPPED, USED, Block, Pool

if TYPE_CHECKING:
    from .device_memory import DeviceMemory

UNKNOWN_DEVICE_ADDRESSES = 1 << 44
"""Bytes of addresses for a segment where the device's size is unknown."""


class ExpandableSegments:
    """Growth and shrinkage of the expandable segments of a device.

    Args:
        memory: of the device.
        device_bytes: size of the device; None: unknown.
    """

    def __init__(self, memory: DeviceMemory, device_bytes: int | None) -> None:
        self._memory = memory
        # torch's own choice: 9/8 of the device
        self._address_bytes = UNKNOWN_DEVICE_ADDRESSES if device_bytes is None else device_bytes + device_bytes // 8

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
        if block.prev is None and block.next is None:
            self._memory.segments -= 1
        else:
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
        space = -(-max(self._address_bytes, size) // pool.granule) * pool.granule
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
        if block.prev is None and block.next is None:
            self._memory.segments += 1
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
