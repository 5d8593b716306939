"""The allocator's model, with the keys of what is allocated in it."""

from collections.abc import Callable, Iterable
from itertools import count

from ...worker.memory.allocator import CachingAllocator
from ...worker.memory.allocator_settings import AllocatorSettings
from .block import INPUT, OUTPUT
from .recorder import RELEASE, BlockProgram, Op

SLOTS = 1024
"""Keys per block: more than a program has slots."""


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

    def keep(self, key: int) -> int:
        """Return a new key of a tensor whose key is needed again."""
        kept = next(self._keys)
        self.allocator.rename(key, kept)
        return kept

    def size(self, key: int) -> int:
        """Return the bytes of what is allocated under a key."""
        return self.allocator.size_of(key)

    def release(self, keys: Iterable[int]) -> None:
        """Release tensors."""
        for key in keys:
            self.allocator.free(key)

    def passing(self, size: float, stream: int = 0) -> None:
        """Allocate a tensor and release it."""
        self.allocator.free(self.take(size, stream))

    def run(self, ops: Iterable[Op], base: int) -> None:
        """Run a block's program.

        Args:
            ops: of the program.
            base: the key of its slot 0, whose tensor is the output of the block before.
        """
        malloc, free = self.allocator.malloc, self.allocator.free
        for slot, size, stream in ops:
            key = base + slot if slot != INPUT else base - SLOTS + OUTPUT
            if size == RELEASE:
                free(key)
            else:
                malloc(key, size, stream)

    def run_backward(self, program: BlockProgram, base: int, each: Callable[[int], None] | None = None) -> list[int]:
        """Run a block's backward pass, after what it begins with; return the keys of its weights' gradients.

        Args:
            program: of the block.
            base: the key of its slot 0.
            each: called with the key of a gradient that exists, which it may release; None: they stay.
        """
        if each is None:
            self.run(program.backward[program.begins :], base)
            return [base + slot for slot, _ in program.gradients]
        slots = {slot for slot, _ in program.gradients}
        for slot in sorted(slots.difference(slot for slot, _, _ in program.backward)):
            each(base + slot)  # a loss in chunks has it before
        malloc, free = self.allocator.malloc, self.allocator.free
        for slot, size, stream in program.backward[program.begins :]:
            key = base + slot if slot != INPUT else base - SLOTS + OUTPUT
            if size == RELEASE:
                free(key)
            else:
                malloc(key, size, stream)
                if slot in slots:
                    each(key)
        return []
