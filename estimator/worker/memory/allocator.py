"""Model of torch's CUDA caching allocator: which segments it takes from the card for a sequence of requests.

    allocator = CachingAllocator(Settings(), capacity_bytes=80 << 30)
    allocator.malloc("weights", 3 << 20)
    allocator.allocated, allocator.reserved  # 3 MiB, 20 MiB

Rules of c10/cuda/CUDACachingAllocator.cpp, torch 2.4 to 2.13, native backend. Standard library only.

- Sizes are rounded up to 512 B (or as `roundup_power2_divisions` says). Up to 1 MiB they come from the small pool, with
  segments of 2 MiB; larger ones from the large pool: below 10 MiB out of segments of 20 MiB, else of a segment of their
  own, rounded up to 2 MiB. Each stream has its own pools.
- The smallest free block that is large enough is taken, at equal size the one at the lowest address. It is split where
  512 B or more remain (small pool, expandable segments), or more than 1 MiB (large pool). Freed neighbours merge.
- Where a segment cannot be had, whole free segments go back to the card and the request is tried again.

Left out, because an allocation trace does not tell them: blocks that wait for another stream after their release
(`record_stream`: let the trace free them when they are), private pools of CUDA graphs, and the driver's choice of
addresses (here every new segment lies above all earlier ones).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from .allocator_blocks import (
    BY_SIZE,
    FREE,
    MIB,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    UNMAPPED,
    USED,
    Block,
    Pool,
    growable,
    join,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from .allocator_settings import Settings

SMALLEST_BLOCK = 512
OWN_SEGMENT = 10 * MIB
SEGMENT_STEP = 2 * MIB
UNLIMITED = 1 << 62
ADDRESSES = 1 << 44
"""Address space of an expandable segment where the card's size is not known."""


class OutOfMemoryError(MemoryError):
    """A request that failed even after the cache was given back. All figures in bytes."""

    def __init__(self, *, requested: int, segment: int, allocated: int, reserved: int, limit: int) -> None:
        self.requested = requested
        """What was asked for, rounded."""
        self.segment = segment
        """The segment that it needed; an expandable one grows by less."""
        self.allocated = allocated
        self.reserved = reserved
        """Held after the flush: what is not allocated of it is spread over segments that are partly in use."""
        self.free = limit - reserved
        super().__init__(
            f"out of memory: {requested:,} bytes asked for, {self.free:,} free,"
            f" {reserved:,} reserved of which {allocated:,} allocated"
        )


class BlockInfo(NamedTuple):
    """One block of mapped memory."""

    address: int
    size: int
    used: bool
    stream: int
    small: bool


class CachingAllocator:
    """The allocator of one device.

    `capacity_bytes` is what torch can get of the card: its memory less contexts, libraries and other processes; None:
    without end. `device_bytes` is the whole card, of which `Settings.memory_fraction` is a share; None: the capacity.
    """

    def __init__(
        self, settings: Settings, capacity_bytes: int | None = None, *, device_bytes: int | None = None
    ) -> None:
        whole = capacity_bytes if device_bytes is None else device_bytes
        limited = settings.memory_fraction < 1 and whole is not None
        self.allocated = 0
        """Bytes in use, as `torch.cuda.memory_allocated`."""
        self.reserved = 0
        """Bytes held of the card, as `torch.cuda.memory_reserved`."""
        self.active = 0
        """Blocks in use."""
        self.segments = 0
        """Segments held; an expandable one counts once, however much of it is mapped."""
        self.retries = 0
        """How often everything idle was given back because a request failed (`num_alloc_retries`)."""
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._settings = settings
        self._expandable = settings.expandable_segments
        self._max_split = settings.max_split_bytes or UNLIMITED
        self._allowed = int(settings.memory_fraction * (whole or 0)) if limited else UNLIMITED
        self._capacity = UNLIMITED if capacity_bytes is None else capacity_bytes
        self._collect_above = int(settings.collection_threshold * self._allowed) if limited else 0
        self._plain = not (self._expandable or settings.max_split_bytes or self._collect_above)
        self._address_space = ADDRESSES if whole is None else whole + whole // 8  # torch's own choice: 9/8 of the card
        self._next_address = SEGMENT_STEP
        self._searches = 0
        self._live: dict[Hashable, Block | None] = {}
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}

    def malloc(self, key: Hashable, size: int, stream: int = 0) -> None:
        """Allocate `size` bytes under a name of the caller's; of size 0 no block is taken.

        Raises:
            OutOfMemoryError: the capacity does not allow it. The cache has been flushed; all else is as before.
            ValueError: `key` is in use.
        """
        if key in self._live:
            message = f"allocated twice without a release: {key!r}"
            raise ValueError(message)
        if size <= 0:
            self._live[key] = None
            return
        size = self._rounded(size) if self._settings.roundup_divisions else (size + 511) & -512
        pools = self._small if size <= SMALL_REQUEST else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(stream, small=size <= SMALL_REQUEST, settings=self._settings)
        block: Block | None = None
        if self._plain:
            keys = pool.keys
            at = bisect_left(keys, size << BY_SIZE)
            if at < len(keys):
                block = pool.blocks.pop(keys.pop(at))
        else:
            block = self._best_fit(pool, size)
        if block is None:
            block = self._new_block(pool, size)
        rest = block.size - size
        if rest > pool.kept and (size < self._max_split or not pool.kept):
            front = block.split(size)
            pool.put(block)
            block = front
        block.state = USED
        self._live[key] = block
        self.active += 1
        self.allocated = allocated = self.allocated + block.size
        if allocated > self.peak_allocated:  # noqa: PLR1730 - calling max here costs a tenth of the replay
            self.peak_allocated = allocated

    def free(self, key: Hashable) -> None:
        """Release what `key` names; the block stays reserved and may be used again.

        Raises:
            KeyError: `key` is not in use.
        """
        block = self._live.pop(key)
        if block is None:
            return
        self.active -= 1
        self.allocated -= block.size
        block.state = FREE
        block.idle_since = self._searches
        block.pool.settle(block)

    def empty_cache(self) -> None:
        """Give segments without any used block back, and of expandable segments every granule that is wholly free."""
        for pools in (self._large, self._small):
            for _, pool in sorted(pools.items()):
                for block in list(pool.blocks.values()):
                    if self._expandable:
                        self._unmap(block)
                    elif block.prev is None and block.next is None:
                        self._release(block)

    def reset_peak(self) -> None:
        """Let the peaks start from what is held now (`torch.cuda.reset_peak_memory_stats`)."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def blocks(self) -> Iterator[BlockInfo]:
        """All mapped blocks, by address: used and free ones, together `reserved` bytes."""
        used = [block for block in self._live.values() if block is not None]
        pools = [*self._small.values(), *self._large.values()]
        free = [block for pool in pools for block in pool.blocks.values()]
        for block in sorted(used + free, key=lambda block: block.address):
            yield BlockInfo(block.address, block.size, block.state == USED, block.pool.stream, block.pool.small)

    def _rounded(self, size: int) -> int:
        divisions = self._settings.divisions(size)
        if divisions <= 1 or size <= SMALLEST_BLOCK * divisions:
            return (size + 511) & -512
        step = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // step) * step

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """Take a free block, where blocks may grow or may not be split."""
        if not pool.small:
            self._searches += 1
        keys = pool.keys
        at = bisect_left(keys, size << BY_SIZE)
        if at == len(keys):
            return None
        block = pool.blocks[keys[at]]
        if self._expandable:  # what can grow counts as large as it can become, so that closed gaps are filled first
            while at + 1 < len(keys) and growable(pool.blocks[keys[at + 1]]) < growable(block):
                at += 1
                block = pool.blocks[keys[at]]
        rounding = self._settings.non_split_rounding_bytes or self._settings.large_segment_bytes
        if size < self._max_split <= block.size:
            return None
        if size >= self._max_split and block.size >= size + rounding:
            return None
        pool.take(block)
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
        if size <= SMALL_REQUEST:
            segment = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            segment = self._settings.large_segment_bytes
        else:
            segment = -(-size // SEGMENT_STEP) * SEGMENT_STEP
        if self._collect_above and self.reserved > self._collect_above:
            self._collect_garbage()
        block = self._grow(pool, size, segment)
        if block is None and self._release_oversize(pool, size):
            block = self._grow(pool, size, segment)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._grow(pool, size, segment)
        if block is None:
            raise OutOfMemoryError(
                requested=size,
                segment=segment,
                allocated=self.allocated,
                reserved=self.reserved,
                limit=min(self._capacity, self._allowed),
            )
        return block

    def _grow(self, pool: Pool, size: int, segment: int) -> Block | None:
        """A block from the card that is in no list of free blocks; None where there is no room."""
        if self.reserved + segment > self._allowed:
            return None
        if self._expandable:
            return self._expand(pool, size)
        if not self._reserve(segment):
            return None
        self.segments += 1
        return Block(self._addresses(segment), segment, FREE, pool)

    def _reserve(self, size: int) -> bool:
        if self.reserved + size > self._capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _addresses(self, size: int) -> int:
        start = self._next_address
        self._next_address += -(-size // SEGMENT_STEP) * SEGMENT_STEP
        return start

    def _release(self, block: Block) -> None:
        block.pool.take(block)
        self.reserved -= block.size
        self.segments -= 1

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With `max_split_size_mb`: give one large enough segment back, or as many of the largest as are needed."""
        if self._max_split == UNLIMITED or self._expandable:
            return False
        wanted = max(size, self._max_split)
        at = bisect_left(pool.keys, wanted << BY_SIZE)
        if at < len(pool.keys):
            self._release(pool.blocks[pool.keys[at]])
            return True
        released = 0
        while pool.keys and released < wanted:
            block = pool.blocks[pool.keys[-1]]
            if block.size < self._max_split:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Release the whole segments of the large pools that were idle longest, until below the threshold."""
        idle = [
            block
            for _, pool in sorted(self._large.items())
            for block in map(pool.blocks.__getitem__, pool.keys)
            if block.prev is None and block.next is None
        ]
        excess = self.reserved - self._collect_above
        age = sum(self._searches - block.idle_since for block in idle)
        while idle and excess > 0:
            threshold = age / len(idle)
            old = [block for block in idle if self._searches - block.idle_since >= threshold]
            idle = [block for block in idle if self._searches - block.idle_since < threshold]
            for block in old:
                excess -= block.size
                age -= self._searches - block.idle_since
                self._release(block)

    def _expand(self, pool: Pool, size: int) -> Block | None:
        """Map memory at the lowest place of the stream's expandable segments where `size` has room."""
        block = self._growth_place(pool, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size and block.next is not None:
            beyond = block.next
            if not self._map(beyond, min(size - block.size, beyond.size)):
                return None
            block = beyond  # it has absorbed the block before it
        pool.take(block)
        return block

    def _growth_place(self, pool: Pool, size: int) -> Block:
        """The first of adjoining unmapped and free blocks with enough room, in a new segment if in no other."""
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
        space = -(-max(self._address_space, size) // pool.granule) * pool.granule
        base = self._addresses(space)
        whole = Block(base, space, UNMAPPED, pool, base)
        pool.unmapped.append(whole)  # its addresses are above all others
        return whole

    def _map(self, block: Block, size: int) -> bool:
        """Back the first `size` bytes of an unmapped block with memory, in whole granules, and make them free."""
        pool = block.pool
        mapped = -(-size // pool.granule) * pool.granule  # unmapped blocks start and end with a granule
        if not self._reserve(mapped):
            return False
        if block.prev is None and block.next is None:
            self.segments += 1
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
        pool.settle(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Give the granules that lie wholly within a free block back; what sticks out remains free."""
        pool = block.pool
        first = -(-(block.address - block.base) // pool.granule) * pool.granule
        last = (block.address + block.size - block.base) // pool.granule * pool.granule
        if first >= last:
            return
        pool.take(block)
        before = block.base + first - block.address
        if before:
            pool.put(block.split(before))
        if block.size > last - first:
            rest = block
            block = rest.split(last - first)
            pool.put(rest)
        self.reserved -= block.size
        block.state = UNMAPPED
        for other in (block.prev, block.next):
            if other is not None and other.state == UNMAPPED:
                pool.unmapped.remove(other)
                join(block, other)
        if block.prev is None and block.next is None:
            self.segments -= 1
        else:
            pool.unmapped.append(block)
            pool.unmapped.sort(key=lambda block: block.address)
