"""Memory of the device in the allocator model: its limit, what is reserved of it, and addresses for segments."""

from __future__ import annotations

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
