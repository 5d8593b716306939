"""A way in which a job may run differently from how it was read, and the row of the table that proposes it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import fields

from ..job import Lora, ResolvedJob

# How often something is the cause, among jobs that hold other memory than predicted: relative and judged, not
# counted, by what frameworks do by default and what their users report. The comments beside the causes give reasons.
COMMON, USUAL, SOME, RARE, UNLIKELY = 8.0, 4.0, 2.0, 1.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Other settings of a job, or memory besides it that no setting describes."""

    name: str
    """Label in tables: ``checkpointing off``."""
    description: str
    """Clause that continues "if": ``activation checkpointing is off``."""
    plausibility: float
    """Prior weight, relative to the other causes."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted job keys and their values; empty if no setting describes it."""
    fix: str = ""
    """Advice, as an imperative; empty if the description suffices."""
    allocated_bytes: int = 0
    """Memory from torch's allocator, besides the effect of ``changes``; negative: less memory."""
    outside_bytes: int = 0
    """Memory from outside of torch's allocator, besides the effect of ``changes``."""
    loading_bytes: int = 0
    """The part of these two that exists before the first step."""

    @property
    def keys(self) -> frozenset[str]:
        """Keys that no other cause may change at the same time."""
        adapters = {f"lora.{field.name}" for field in fields(Lora)} if "lora" in self.changes else set()
        copies = {"a copy of the weights"} if self.loading_bytes else set()
        return frozenset({self.name, *self.changes, *adapters, *copies})


CauseSource = Callable[[ResolvedJob], Iterator[Cause]]
"""Yields the causes that a job may have: a ``CauseRule`` or a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRule:
    """A row of a table of causes: the jobs that it applies to, and other values of their settings."""

    name: str
    description: str
    applies: Callable[[ResolvedJob], bool] = lambda _job: True
    plausibility: float | Callable[[ResolvedJob], float]
    """Prior weight, or a function of the job that returns it."""
    changes: Mapping[str, Any] | Callable[[ResolvedJob], Mapping[str, Any]]
    """Dotted job keys and their values, or a function of the job that returns them."""
    fix: str = ""

    def __call__(self, job: ResolvedJob) -> Iterator[Cause]:
        """Yield the cause if it applies to the job."""
        if self.applies(job):
            yield Cause(
                name=self.name,
                description=self.description,
                plausibility=self.plausibility(job) if callable(self.plausibility) else self.plausibility,
                changes=self.changes(job) if callable(self.changes) else self.changes,
                fix=self.fix,
            )
