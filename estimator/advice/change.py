"""One thing to set otherwise so that a job takes less, and what that costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..job.job import Job

HOST_LOADING = "loading"
"""The kind of changes that help the host's memory alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to set otherwise."""

    kind: str
    """Changes of one kind exclude each other."""
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    why: str
    """What it costs, in a few words."""
    slowdown: float
    """The share by which a step takes longer; negative where it gets faster."""
    quality: float
    """What is lost of the result, on the slowdown's scale; 0: nothing."""
    source: str
    """Where the costs come from."""

    @property
    def cost(self) -> float:
        """What ranks it: the slowdown and the loss together."""
        return max(0.0, self.slowdown) + self.quality


def shorter_sequences(job: Job) -> Iterator[Change]:
    """Sequences of half the length, a quarter, ..."""
    length, halvings = job.training.sequence_length, 1
    while length % 2 == 0 and length >= 1024:
        length //= 2
        yield Change(
            kind="length",
            changes={"training.sequence_length": length},
            why="cuts longer examples",
            slowdown=0.0,
            quality=0.5 * halvings,
            source="nothing is lost where the examples are that short",
        )
        halvings += 1
