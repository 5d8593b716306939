"""Model of torch's CUDA caching allocator: the segments that it takes from the device for a sequence of requests.

    allocator = CachingAllocator(AllocatorSettings(), capacity_bytes=80 << 30)
    allocator.malloc("weights", 3 << 20)
    allocator.allocated, allocator.reserved  # 3 MiB, 20 MiB

Rules of c10/cuda/CUDACachingAllocator.cpp, torch 2.4 to 2.13, native backend. Standard library only.

- Sizes are rounded up to 512 B (or as `roundup_power2_divisions` says). Up to 1 MiB they come from the small pool, with
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

import base64
import zlib
from array import array
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

# Settings, read from the text of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF.
#
# Source: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig of torch 2.4 to 2.13.


MIB = 1 << 20
MAX_COLLECTION_THRESHOLD = 1 - 2**-53
INTERVALS = 16
"""Intervals of sizes, one per power of two from 1 MiB; smaller and larger sizes belong to the first and the last."""
OPTIONS_WITHOUT_EFFECT = {  # on allocated or reserved device memory
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
}


@dataclass(frozen=True)
class AllocatorSettings:
    """Options of the allocator. The defaults are torch's own."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    """Blocks of this size or more are never split, nor given to smaller requests. None: no limit."""
    non_split_rounding_bytes: int | None = None
    """Most bytes by which a block beyond `max_split_bytes` may exceed the request. None: `large_segment_bytes`."""
    large_segment_bytes: int = 20 * MIB
    """Segment for requests of 1 to 10 MiB, and the step by which expandable segments of the large pool grow."""
    roundup_divisions: tuple[int, ...] = ()
    """Steps between powers of two to which sizes are rounded up, per interval of sizes; empty: 512-byte steps."""
    collection_threshold: float = 0.0
    """Share of the process's allowed memory above which idle segments are released; 0: never. Torch ignores it unless
    `memory_fraction` is below 1."""
    memory_fraction: float = 1.0
    """Limit of the process as a share of the device (`torch.cuda.set_per_process_memory_fraction`)."""
    notes: tuple[str, ...] = ()
    """Sentences about options that are not followed."""
    followed: tuple[str, ...] = field(default=(), compare=False)
    """Options that are followed and change something, as written."""

    @classmethod
    def from_conf(cls, text: str | None) -> AllocatorSettings:
        """Return the settings of a text such as `expandable_segments:True,max_split_size_mb:128`.

        Never raises: an option that is unknown, not modelled or refused by torch keeps its default and gets a note.
        """
        fields: dict[str, Any] = {}
        notes: list[str] = []
        followed: list[str] = []
        options = _options(text or "")
        options.sort(
            key=lambda option: option[0] != "large_segment_size_mb"
        )  # the minimum of other options depends on it
        for name, value in options:
            if name in OPTIONS_WITHOUT_EFFECT:
                continue
            reader = _READERS.get(name)
            if reader is None:
                notes.append(_UNMODELLED.get(name, f"allocator option {name!r} is not known and was ignored"))
                continue
            before = replace(cls(), **fields)
            try:
                reader(value, fields)
            except ValueError as error:
                notes.append(f"allocator option {name}:{value} was ignored: {error}")
                continue
            if replace(cls(), **fields) != before:
                followed.append(f"{name}:{value}")
        settings = replace(cls(), **fields)
        if settings.collection_threshold and settings.memory_fraction >= 1:
            notes.append("garbage_collection_threshold has an effect only where the process's memory is limited")
        return replace(settings, notes=tuple(notes), followed=tuple(followed))

    def divisions(self, size: int) -> int:
        """Return the steps between powers of two for a request of `size` bytes; 0 or 1: no such rounding."""
        if not self.roundup_divisions:
            return 0
        return self.roundup_divisions[_interval(size // MIB)]


def _interval(mib: int) -> int:
    return min(max(mib.bit_length() - 1, 0), INTERVALS - 1)


def _options(text: str) -> list[tuple[str, str]]:
    """Return names and values; a comma inside brackets does not end an option."""
    parts = [""]
    depth = 0
    for char in "".join(text.split()):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    pairs = (part.partition(":") for part in parts if part)
    return [(name, value) for name, _, value in pairs]


def _boolean(value: str) -> bool:
    if value not in {"True", "False"}:
        message = "torch accepts only True or False"
        raise ValueError(message)
    return value == "True"


def _mebibytes(value: str, minimum: int) -> int:
    if not value.isdecimal() or int(value) < minimum:
        message = f"torch accepts a whole number of MB, at least {minimum}"
        raise ValueError(message)
    return int(value) * MIB


def _fraction(value: str, maximum: float) -> float:
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= maximum:
        message = "torch accepts a share between 0 and 1"
        raise ValueError(message)
    return fraction


def _power_of_two(value: str, *, zero: bool = False) -> int:
    number = int(value) if value.isdecimal() else -1
    if number < 0 or number & (number - 1) or (number == 0 and not zero):
        message = "torch accepts powers of two"
        raise ValueError(message)
    return number


def _divisions(value: str) -> tuple[int, ...]:
    """Read `4` (all sizes) or `[256:1,512:2,>:4]` (from 256 MiB, from 512 MiB, and beyond the last)."""
    if not value.startswith("["):
        return (_power_of_two(value),) * INTERVALS
    if not value.endswith("]"):
        message = "its closing bracket is missing"
        raise ValueError(message)
    table = [0] * INTERVALS
    last = None
    for part in value[1:-1].split(","):
        start, _, steps = part.partition(":")
        division = _power_of_two(steps, zero=True)
        if start == ">":
            first = 0 if last is None else last + 1
            table[first:] = [division] * (INTERVALS - first)
            continue
        at = _interval(_power_of_two(start))
        if last is None:
            table[:at] = [division] * at  # the first one holds for all smaller sizes too
        table[at] = division
        last = at
    return tuple(table)


def _check_native(value: str) -> None:
    if value != "native":
        message = "vramtop models only torch's native allocator, and these figures are for it"
        raise ValueError(message)


def _large_segment_mib(fields: dict[str, Any]) -> int:
    return int(fields.get("large_segment_bytes", AllocatorSettings.large_segment_bytes)) // MIB


_READERS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "expandable_segments": lambda v, f: f.update(expandable_segments=_boolean(v)),
    "max_split_size_mb": lambda v, f: f.update(max_split_bytes=_mebibytes(v, _large_segment_mib(f))),
    "max_non_split_rounding_mb": lambda v, f: f.update(non_split_rounding_bytes=_mebibytes(v, _large_segment_mib(f))),
    "large_segment_size_mb": lambda v, f: f.update(large_segment_bytes=_mebibytes(v, 11)),
    "roundup_power2_divisions": lambda v, f: f.update(roundup_divisions=_divisions(v)),
    "garbage_collection_threshold": lambda v, f: f.update(collection_threshold=_fraction(v, MAX_COLLECTION_THRESHOLD)),
    "per_process_memory_fraction": lambda v, f: f.update(memory_fraction=_fraction(v, 1.0)),
    "backend": lambda v, _: _check_native(v),
}
_UNMODELLED = {
    "throw_on_cudamalloc_oom": "throw_on_cudamalloc_oom is not modelled: the flush before giving up is still assumed",
    "graph_capture_record_stream_reuse": "CUDA graphs are not modelled, nor graph_capture_record_stream_reuse",
}


# Blocks and free lists of the allocator model.


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


# Memory of the device in the allocator model: its limit, what is reserved of it, and addresses for segments.


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
        self.segments = 0
        """Number of segments; an expandable one counts once, however much of it is mapped."""
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


# Expandable segments of the allocator model: address ranges in which memory is mapped and unmapped by granules.


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


MIN_BLOCK_BYTES = 512
MIN_OWN_SEGMENT_BYTES = 10 * MIB
"""Requests from this size on get a segment of their own."""


class OutOfMemoryError(MemoryError):
    """A request that failed even after the cache was given back. All figures in bytes."""

    def __init__(self, *, requested: int, segment: int, allocated: int, reserved: int, limit: int) -> None:
        self.requested = requested
        """The request, rounded."""
        self.segment = segment
        """The segment that it needed; an expandable one grows by less."""
        self.allocated = allocated
        self.reserved = reserved
        """Reserved after the flush: what is not allocated of it is spread over segments that are partly in use."""
        self.free = limit - reserved
        super().__init__(
            f"out of memory: {requested / MIB:,.0f} MiB requested, {self.free / MIB:,.0f} free, {reserved / MIB:,.0f} "
            f"reserved of which {allocated / MIB:,.0f} allocated"
        )


class BlockInfo(NamedTuple):
    """One block of mapped memory."""

    address: int
    size: int
    used: bool
    stream: int
    small: bool


class CachingAllocator(DeviceMemory):
    """The allocator of one device.

    Args:
        settings: of the allocator.
        capacity_bytes: memory that torch can get: the device's, less contexts, libraries and other processes; None:
            unlimited.
        device_bytes: the whole device, of which `AllocatorSettings.memory_fraction` is a share; None: the capacity.
    """

    def __init__(
        self, settings: AllocatorSettings, capacity_bytes: int | None = None, *, device_bytes: int | None = None
    ) -> None:
        super().__init__(capacity_bytes)
        whole = capacity_bytes if device_bytes is None else device_bytes
        limited = settings.memory_fraction < 1 and whole is not None
        self.allocated = 0
        """Bytes in use, as `torch.cuda.memory_allocated`."""
        self.active = 0
        """Blocks in use, and released ones that another stream uses."""
        self.retries = 0
        """Number of requests that failed until the whole cache was given back (`num_alloc_retries`)."""
        self.peak_allocated = 0
        self._settings = settings
        self._expandable = ExpandableSegments(self, whole) if settings.expandable_segments else None
        self._max_split = settings.max_split_bytes or UNLIMITED_BYTES
        self._allowed = int(settings.memory_fraction * (whole or 0)) if limited else UNLIMITED_BYTES
        self._collect_above = int(settings.collection_threshold * self._allowed) if limited else 0
        self._plain = not (self._expandable or settings.max_split_bytes or self._collect_above)
        self._searches = 0
        self._live: dict[Hashable, Block | None] = {}
        self._waiting: dict[Hashable, Block] = {}
        """Released blocks that another stream uses."""
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self.private: set[int] = set()
        """Streams whose pools keep their segments: those that stand for the private pools of CUDA graphs."""

    @property
    def waiting_bytes(self) -> int:
        """Released blocks that another stream uses: torch's `active_bytes` less its `allocated_bytes`."""
        return sum(block.size for block in self._waiting.values())

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
        size = self._rounded(size) if self._settings.roundup_divisions else (size + 511) & -512
        pools = self._small if size <= MAX_SMALL_BYTES else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(stream, small=size <= MAX_SMALL_BYTES, settings=self._settings)
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
        self.active += 1
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
        self.active -= 1
        block.state = FREE
        block.idle_since = self._searches
        block.pool.add_merged(block)

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

    def blocks(self) -> Iterator[BlockInfo]:
        """Yield all mapped blocks by address, used and free: together `reserved` bytes."""
        used = [block for block in (*self._live.values(), *self._waiting.values()) if block is not None]
        pools = [*self._small.values(), *self._large.values()]
        free = [block for pool in pools for block in pool.blocks.values()]
        for block in sorted(used + free, key=lambda block: block.address):
            yield BlockInfo(block.address, block.size, block.state == USED, block.pool.stream, block.pool.small)

    def _rounded(self, size: int) -> int:
        divisions = self._settings.divisions(size)
        if divisions <= 1 or size <= MIN_BLOCK_BYTES * divisions:
            return (size + 511) & -512
        step = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // step) * step

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """Remove and return a free block under settings that let blocks grow or forbid to split them."""
        if not pool.small:
            self._searches += 1
        keys = pool.keys
        at = bisect_left(keys, size << ADDRESS_BITS)
        if at == len(keys):
            return None
        block = pool.blocks[keys[at]]
        if self._expandable:  # a block that can grow counts with its growth, so that closed gaps are filled first
            while at + 1 < len(keys) and growable_bytes(pool.blocks[keys[at + 1]]) < growable_bytes(block):
                at += 1
                block = pool.blocks[keys[at]]
        rounding = self._settings.non_split_rounding_bytes or self._settings.large_segment_bytes
        if size < self._max_split <= block.size:
            return None
        if size >= self._max_split and block.size >= size + rounding:
            return None
        pool.remove(block)
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
        """Return a block of new memory, after giving cached memory back if that is necessary."""
        segment = self._segment_bytes(size)
        if self._collect_above and self.reserved > self._collect_above:
            self._collect_garbage()
        block = self._take_from_device(pool, size, segment)
        if block is None and self._release_oversize(pool, size):
            block = self._take_from_device(pool, size, segment)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._take_from_device(pool, size, segment)
        if block is None:
            raise OutOfMemoryError(
                requested=size,
                segment=segment,
                allocated=self.allocated,
                reserved=self.reserved,
                limit=min(self.capacity, self._allowed),
            )
        return block

    def _segment_bytes(self, size: int) -> int:
        if size <= MAX_SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < MIN_OWN_SEGMENT_BYTES:
            return self._settings.large_segment_bytes
        return -(-size // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT

    def _take_from_device(self, pool: Pool, size: int, segment: int) -> Block | None:
        """Return a block of new memory that is in no free list; None: there is no room."""
        if self.reserved + segment > self._allowed:
            return None
        if self._expandable:
            return self._expandable.expand(pool, size)
        if not self.reserve(segment):
            return None
        self.segments += 1
        return Block(self.take_addresses(segment), segment, FREE, pool)

    def _release_segment(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size
        self.segments -= 1

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
                self._release_segment(block)


# Reserved memory of a trace: its allocations replayed through the allocator model, and packed to be kept.
#
# Standard library only: the worker replays them once, and vramtop again for a GPU on which they do not fit.


if TYPE_CHECKING:
    Allocation = tuple[int, tuple[int, "int | None", int]]
    """Index of the event, and ``(record, bytes, stream)``, or ``(record, None, what)`` for its release."""

MAX_TIMELINE_POINTS = 500
WORDS_PER_ALLOCATION = 4


def replay_reserved(
    allocations: Sequence[Allocation], marks: Sequence[int], options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return peak and timeline of the reserved bytes over both steps; the second finds the cache of the first.

    An allocation that fails ends the replay. The timeline has at most ``MAX_TIMELINE_POINTS`` events, the lowest and
    the highest allocation of every stretch and both peaks among them, and those that are asked for.

    Args:
        allocations: in order.
        marks: indices of events whose reserved bytes the timeline has to contain.
        options: ``conf``: the allocator's settings as in its environment variable; ``capacity_bytes``: GPU memory that
            torch can get, and ``device_bytes``: the GPU's whole memory; unlimited by default.
    """
    options = options or {}
    settings = AllocatorSettings.from_conf(options.get("conf"))
    allocator = CachingAllocator(settings, options.get("capacity_bytes"), device_bytes=options.get("device_bytes"))
    allocated, reserved = array("q"), array("q")
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
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
    indices = [index for index, _ in allocations]
    kept = _selected_events(allocated, MAX_TIMELINE_POINTS - 2)
    kept.update(values.index(max(values)) for values in (allocated, reserved) if values)
    kept.update(at for at in (bisect_right(indices, mark) - 1 for mark in marks) if 0 <= at < len(allocated))
    return {
        "peak": max(reserved, default=0),
        "retries": allocator.retries,
        "out_of_memory": failure,
        "timeline": [[indices[at], reserved[at]] for at in sorted(kept)],
        "followed": list(settings.followed),
        "notes": list(settings.notes),
    }


def _selected_events(allocated: Sequence[int], max_points: int) -> set[int]:
    """Return all events, or both ends and the lowest and highest event of stretches of equal length."""
    total = len(allocated)
    if total <= max_points:
        return set(range(total))
    stretches = (max_points - 2) // 2
    kept = {0, total - 1}
    for number in range(stretches):
        start = total * number // stretches
        stretch = allocated[start : total * (number + 1) // stretches]
        kept.add(start + stretch.index(min(stretch)))
        kept.add(start + stretch.index(max(stretch)))
    return kept


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
