"""A range of bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes, both ends included."""

    low_bytes: int
    """Lower end."""
    high_bytes: int
    """Upper end."""

    def moved(self, by: int, *, less: int = 0, more: int = 0) -> "Span":
        """Return the range ``by`` bytes higher, with its lower end ``less`` lower and its upper end ``more`` higher."""
        return Span(max(0, self.low_bytes + by - less), max(0, self.high_bytes + by + more))

    def raised(self, low_bytes: int) -> "Span":
        """Return the range without what lies below ``low_bytes``."""
        return Span(min(max(self.low_bytes, low_bytes), self.high_bytes), self.high_bytes)

    def joined(self, other: "Span | None") -> "Span":
        """Return the range that holds both."""
        if other is None:
            return self
        return Span(min(self.low_bytes, other.low_bytes), max(self.high_bytes, other.high_bytes))

    def says_nothing(self, expected: int) -> bool:
        """Return True if it is so wide that the expected figure means nothing: wider than twice that."""
        return self.high_bytes - self.low_bytes > 2 * expected

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low_bytes <= size <= self.high_bytes
