"""The allocator's model, with the keys of what is allocated in it."""

from collections.abc import Iterable
from itertools import count

from ...worker.memory.allocator import CachingAllocator
from ...worker.memory.allocator_blocks import RELEASED
from ...worker.memory.allocator_settings import AllocatorSettings

SMALLEST_BYTES = 16 << 10
"""Smaller tensors are left out: together they fill less than a segment of the small pool."""


class Machine:
    """A rank's allocator.

    Args:
        settings: of the allocator.
    """

    def __init__(self, settings: AllocatorSettings) -> None:
        self.allocator = CachingAllocator(settings)
        self._keys = count(-1, -1)

    def take(self, size: float, stream: int = 0) -> int:
        """Allocate a tensor and return its key."""
        key = next(self._keys)
        self.allocator.malloc(key, round(size), stream)
        return key

    def take_all(self, sizes: Iterable[float], stream: int = 0) -> list[int]:
        """Allocate tensors and return their keys."""
        return [self.take(size, stream) for size in sizes]

    def size(self, key: int) -> int:
        """Return the bytes of what is allocated under a key."""
        return self.allocator.size_of(key)

    def release(self, keys: Iterable[int], how: int = RELEASED) -> None:
        """Release tensors, at once or as ``allocator_blocks`` says."""
        for key in keys:
            self.allocator.free(key, how)

    def passing(self, size: float, stream: int = 0) -> None:
        """Allocate a tensor and release it."""
        self.allocator.free(self.take(size, stream))
