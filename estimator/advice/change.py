"""A change of a job that lowers the memory it needs, and the row of the table that proposes it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..job import ResolvedJob

HOST_LOADING = "loading"
"""The kind of changes that lower host memory only."""
MORE_GPUS_SLOWDOWN = 0.2
"""Cost of each doubling of the GPUs: other jobs cannot use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """New values of some settings, and their cost in speed and quality."""

    kind: str
    """Changes of one kind exclude each other."""
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    why: str
    """Description of the cost, in a few words."""
    slowdown: float
    """Share by which a step takes longer; negative if it gets faster."""
    quality: float
    """Loss of quality on the scale of ``slowdown``; 0: the same result."""
    source: str
    """Source of the costs."""

    @property
    def cost(self) -> float:
        """Slowdown and loss of quality together, by which changes are ranked."""
        return max(0.0, self.slowdown) + self.quality


Proposal = Callable[[ResolvedJob, int], Iterator[Change]]
"""Yields the changes that suit a job, given the number of GPUs that there are: a ``ChangeRule`` or a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRule:
    """A row of a table of changes: the jobs that it applies to, the settings that it changes, and its cost."""

    kind: str
    applies: Callable[[ResolvedJob], bool]
    changes: Mapping[str, Any] | Callable[[ResolvedJob], dict[str, Any]]
    """Dotted job keys and their new values, or a function of the job that returns them."""
    why: str
    slowdown: float | Callable[[ResolvedJob], float] = 0.0
    """Share by which a step takes longer, or a function of the job that returns it."""
    quality: float = 0.0
    source: str

    def __call__(self, job: ResolvedJob, _gpus: int) -> Iterator[Change]:
        """Yield the change if it applies to the job."""
        if self.applies(job):
            yield Change(
                kind=self.kind,
                changes=self.changes(job) if callable(self.changes) else dict(self.changes),
                why=self.why,
                slowdown=self.slowdown(job) if callable(self.slowdown) else self.slowdown,
                quality=self.quality,
                source=self.source,
            )


def shorter_sequences(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield sequences of half the length, a quarter, ... down to 512 tokens."""
    length, halvings = job.training.sequence_length, 1
    while length % 2 == 0 and length >= 1024:
        length //= 2
        yield Change(
            kind="length",
            changes={"training.sequence_length": length},
            why="truncates longer sequences",
            slowdown=0.0,
            quality=0.5 * halvings,
            source="nothing is lost if the examples are that short",
        )
        halvings += 1
