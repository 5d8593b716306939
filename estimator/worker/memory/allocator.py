"""Model of torch's CUDA caching allocator: the segments that it takes from the device for a sequence of requests.

    allocator = CachingAllocator(AllocatorSettings(), capacity_bytes=80 << 30)
    allocator.malloc("weights", 3 << 20)
    allocator.allocated, allocator.reserved  # 3 MiB, 20 MiB

Rules of c10/cuda/CUDACachingAllocator.cpp, torch 2.4 to 2.13, native backend. Standard library only.

- Sizes are rounded up to 512 B. Up to 1 MiB they come from the small pool, with
  segments of 2 MiB; larger ones from the large pool: below 10 MiB from segments of 20 MiB, otherwise from a segment of
  their own, rounded up to 2 MiB. Each stream has its own pools.
- The smallest free block that is large enough is taken; of equal sizes, the one at the lowest address. It is split if
  at least 512 B remain (small pool, expandable segments), or more than 1 MiB (large pool). Freed neighbours merge.
- If the device has no room for a segment, whole free segments are given back to it and the request is tried again.
- A block that another stream uses (`record_stream`) is no longer allocated after its release, but stays out of its pool
  until that stream is done with it, or until the device has no room: then the CPU waits for all of them.

Not modelled, because an allocation trace does not contain it: the driver's choice of addresses (here every new segment
is above all earlier ones). A private pool of a CUDA graph is that of a stream which has nothing else (`private`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable

from .allocator_blocks import (
    ADDRESS_BITS,
    FREE,
    LARGE_SEGMENT_BYTES,
    MAX_SMALL_BYTES,
    RELEASED,
    RETURNED,
    SEGMENT_ALIGNMENT,
    SMALL_SEGMENT_BYTES,
    UNLIMITED_BYTES,
    USED,
    USED_ELSEWHERE,
    Block,
    DeviceMemory,
    ExpandableSegments,
    Pool,
    growable_bytes,
)
from .allocator_settings import MIB, AllocatorSettings

MIN_OWN_SEGMENT_BYTES = 10 * MIB
"""Requests from this size on get a segment of their own."""


class OutOfMemoryError(MemoryError):
    """A request that failed even after the cache was given back; what is reserved and not allocated is split up."""


class CachingAllocator(DeviceMemory):
    """The allocator of one device.

    Args:
        settings: of the allocator.
        capacity_bytes: memory that torch can get: the device's, less contexts, libraries and other processes; None:
            unlimited.
    """

    def __init__(self, settings: AllocatorSettings, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes)
        self.allocated = 0
        """Bytes in use, as `torch.cuda.memory_allocated`."""
        self.retries = 0
        """Number of requests that failed until the whole cache was given back (`num_alloc_retries`)."""
        self.peak_allocated = 0
        self._expandable = ExpandableSegments(self) if settings.expandable_segments else None
        self._max_split = settings.max_split_bytes or UNLIMITED_BYTES
        self._plain = not (self._expandable or settings.max_split_bytes)
        self._live: dict[Hashable, Block | None] = {}
        self._waiting: dict[Hashable, Block] = {}
        """Released blocks that another stream uses."""
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self.private: set[int] = set()
        """Streams whose pools keep their segments: those that stand for the private pools of CUDA graphs."""

    def malloc(self, key: Hashable, size: int, stream: int = 0) -> None:
        """Allocate `size` bytes under a key of the caller's; size 0 takes no block.

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
        size = (size + 511) & -512
        pools = self._small if size <= MAX_SMALL_BYTES else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(stream, small=size <= MAX_SMALL_BYTES, expandable=self._expandable is not None)
        block: Block | None = None
        if self._plain:
            keys = pool.keys
            at = bisect_left(keys, size << ADDRESS_BITS)
            if at < len(keys):
                block = pool.blocks.pop(keys.pop(at))
        else:
            block = self._best_fit(pool, size)
        if block is None:
            block = self._new_block(pool, size)
        remainder = block.size - size
        if remainder > pool.max_remainder and (size < self._max_split or not pool.max_remainder):
            front = block.split(size)
            pool.add(block)
            block = front
        block.state = USED
        self._live[key] = block
        self.allocated = allocated = self.allocated + block.size
        if allocated > self.peak_allocated:  # noqa: PLR1730 - calling max here costs a tenth of the replay
            self.peak_allocated = allocated

    def free(self, key: Hashable, what: int = RELEASED) -> None:
        """Release the allocation with this key; its block stays reserved and may be used again.

        Args:
            key: of the allocation.
            what: `RELEASED`: at once; `USED_ELSEWHERE`: when another stream is done with it; `RETURNED`: it is done
                with the block that was released before.

        Raises:
            KeyError: `key` is not in use.
        """
        if what == RETURNED:
            waiting = self._waiting.pop(key, None)  # None: it had to return when the device had no room
            if waiting is not None:
                self._return(waiting)
            return
        block = self._live.pop(key)
        if block is None:
            return
        self.allocated -= block.size
        if what == USED_ELSEWHERE:
            self._waiting[key] = block
        else:
            self._return(block)

    def _return(self, block: Block) -> None:
        block.state = FREE
        block.pool.add_merged(block)

    def reset_peaks(self) -> None:
        """Forget the highest values so far, as ``torch.cuda.reset_peak_memory_stats``."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def rename(self, key: Hashable, other: Hashable) -> None:
        """Give the allocation with this key another one."""
        self._live[other] = self._live.pop(key)

    def size_of(self, key: Hashable) -> int:
        """Return the bytes of the block that is in use under this key."""
        block = self._live[key]
        return 0 if block is None else block.size

    def empty_cache(self) -> None:
        """Give back segments without a used block, and of expandable segments every granule that is wholly free.

        Before that the CPU waits for the streams that use released blocks.
        """
        for key in list(self._waiting):
            self._return(self._waiting.pop(key))
        for pools in (self._large, self._small):
            for stream, pool in sorted(pools.items()):
                for block in list(pool.blocks.values()) if stream not in self.private else ():
                    if self._expandable:
                        self._expandable.unmap(block)
                    elif block.prev is None and block.next is None:
                        self._release_segment(block)

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """Remove and return a free block under settings that let blocks grow or forbid to split them."""
        keys = pool.keys
        at = bisect_left(keys, size << ADDRESS_BITS)
        if at == len(keys):
            return None
        block = pool.blocks[keys[at]]
        if self._expandable:  # a block that can grow counts with its growth, so that closed gaps are filled first
            while at + 1 < len(keys) and growable_bytes(pool.blocks[keys[at + 1]]) < growable_bytes(block):
                at += 1
                block = pool.blocks[keys[at]]
        if size < self._max_split <= block.size:
            return None
        if size >= self._max_split and block.size >= size + LARGE_SEGMENT_BYTES:
            return None
        pool.remove(block)
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
        """Return a block of new memory, after giving cached memory back if that is necessary."""
        segment = self._segment_bytes(size)
        block = self._take_from_device(pool, size, segment)
        if block is None and self._release_oversize(pool, size):
            block = self._take_from_device(pool, size, segment)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._take_from_device(pool, size, segment)
        if block is None:
            sizes = size, self.capacity - self.reserved, self.reserved, self.allocated
            requested, free, reserved, used = (f"{each / MIB:,.0f}" for each in sizes)
            raise OutOfMemoryError(
                f"out of memory: {requested} MiB requested, {free} free, {reserved} reserved of which {used} allocated"
            )
        return block

    def _segment_bytes(self, size: int) -> int:
        if size <= MAX_SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < MIN_OWN_SEGMENT_BYTES:
            return LARGE_SEGMENT_BYTES
        return -(-size // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT

    def _take_from_device(self, pool: Pool, size: int, segment: int) -> Block | None:
        """Return a block of new memory that is in no free list; None: there is no room."""
        if self._expandable:
            return self._expandable.expand(pool, size)
        if not self.reserve(segment):
            return None
        return Block(self.take_addresses(segment), segment, FREE, pool)

    def _release_segment(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With `max_split_size_mb`: give back one large enough segment, or as many of the largest as are needed."""
        if self._max_split == UNLIMITED_BYTES or self._expandable:
            return False
        wanted = max(size, self._max_split)
        at = bisect_left(pool.keys, wanted << ADDRESS_BITS)
        if at < len(pool.keys):
            self._release_segment(pool.blocks[pool.keys[at]])
            return True
        released = 0
        while pool.keys and released < wanted:
            block = pool.blocks[pool.keys[-1]]
            if block.size < self._max_split:
                break
            released += block.size
            self._release_segment(block)
        return released >= wanted
