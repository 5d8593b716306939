"""The blocks of an allocator's model, for what must hold of them."""

from collections.abc import Iterator
from typing import NamedTuple

from vramtop.estimator.worker.memory.allocator import CachingAllocator
from vramtop.estimator.worker.memory.allocator_blocks import USED


class BlockInfo(NamedTuple):
    """One block of mapped memory."""

    address: int
    size: int
    used: bool
    stream: int
    small: bool


def mapped_blocks(allocator: CachingAllocator) -> Iterator[BlockInfo]:
    """Yield all mapped blocks by address, used and free: together ``reserved`` bytes."""
    used = [block for block in (*allocator._live.values(), *allocator._waiting.values()) if block is not None]
    pools = [*allocator._small.values(), *allocator._large.values()]
    free = [block for pool in pools for block in pool.blocks.values()]
    for block in sorted(used + free, key=lambda block: block.address):
        yield BlockInfo(block.address, block.size, block.state == USED, block.pool.stream, block.pool.small)
