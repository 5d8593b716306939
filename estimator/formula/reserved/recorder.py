"""Recorder of a program's allocations and releases: tensors counted by their references, as torch counts them."""

from collections.abc import Callable, Iterable

import msgspec

Op = tuple[int, int, int]
"""A slot, the bytes allocated in it, and the stream; or the slot, ``RELEASE`` and 0."""
RELEASE = -1
SMALLEST_BYTES = 16 << 10
"""Smaller tensors are left out: together they fill less than a segment of the small pool."""


class Tensor:
    """A tensor of a program."""

    __slots__ = ("references", "size", "slot")

    def __init__(self, slot: int, size: int) -> None:
        self.slot = slot
        self.size = size
        self.references = 1

    def keep(self) -> "Tensor":
        """Return the tensor with one more reference to it."""
        self.references += 1
        return self


Backward = Callable[[Tensor], Tensor]
"""Runs an operation backward: takes the gradient of its output, which it releases, and returns that of its input."""


class Recorder:
    """Allocations and releases in their order.

    Args:
        first_slot: number of the first tensor; lower ones belong to the caller.
    """

    def __init__(self, first_slot: int = 0) -> None:
        self.ops: list[Op] = []
        self.slots = first_slot

    def new(self, size: float, stream: int = 0) -> Tensor:
        """Allocate a tensor."""
        tensor = Tensor(self.slots, round(size))
        self.slots += 1
        if tensor.size >= SMALLEST_BYTES:
            self.ops.append((tensor.slot, tensor.size, stream))
        return tensor

    def drop(self, *tensors: Tensor) -> None:
        """Give up a reference to each; a tensor without any is released."""
        for tensor in tensors:
            tensor.references -= 1
            if not tensor.references and tensor.size >= SMALLEST_BYTES:
                self.ops.append((tensor.slot, RELEASE, 0))

    def passing(self, *sizes: float) -> None:
        """Allocate tensors that exist at the same time, and release them."""
        self.drop(*[self.new(size) for size in sizes])

    def add_into(self, total: Tensor, addend: Tensor) -> Tensor:
        """Add in place."""
        self.drop(addend)
        return total

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        """Add into a tensor of its own."""
        total = self.new(max(one.size, other.size))
        self.drop(one, other)
        return total

    def cast_copy(self, tensor: Tensor, size: float) -> Tensor:
        """Return the tensor in another dtype, or itself once more; the caller's reference stays."""
        return tensor.keep() if round(size) == tensor.size else self.new(size)

    def cast(self, tensor: Tensor, size: float) -> Tensor:
        """Cast to another dtype; a cast to the same one is the tensor itself."""
        if round(size) == tensor.size:
            return tensor
        made = self.new(size)
        self.drop(tensor)
        return made


def live_bytes(ops: Iterable[Op]) -> dict[int, int]:
    """Return the bytes that operations leave allocated, by slot."""
    live: dict[int, int] = {}
    for slot, size, _ in ops:
        if size == RELEASE:
            live.pop(slot, None)
        else:
            live[slot] = size
    return live


def released_slots(ops: Iterable[Op]) -> set[int]:
    """Return the slots that operations release."""
    return {slot for slot, size, _ in ops if size == RELEASE}


class BlockProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations and releases of one block; its output has the slot ``OUTPUT``."""

    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    slots: int
    gradients: tuple[tuple[int, int], ...]
    """Slots and bytes of the weights' gradients, which ``backward`` leaves allocated."""
    selected: frozenset[int] = frozenset()
    """Slots of what selective checkpointing keeps."""
    casts: tuple[int, ...] = ()
    """Slots of autocast's casts, which stay until the forward pass is over."""
    saved_bytes: int
    """Bytes that the forward pass leaves allocated, without casts."""
    begins: int = 0
    """Operations of ``backward`` before its first layer runs backward: those of the loss."""
    held: int | None = None
    """Slot of the outputs that a variable of the training loop holds, which no program releases."""
    replaces: int = 0
    """Operations of ``forward`` after which the variable takes these outputs, and drops those before."""
    returned: int | None = None
    """Slot of outputs that are released once they are cast to fp32, after the forward pass; None: there are none."""
