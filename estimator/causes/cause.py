"""One way in which a job may run otherwise than it was read, and how plausible that is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import fields

from ..job.job import Lora

# How often something is the reason, among jobs that hold something else than predicted: relative and judged, not
# counted, by what frameworks do by default and what their users report. The comments beside the causes say why.
COMMON, USUAL, SOME, RARE, UNLIKELY = 8.0, 4.0, 2.0, 1.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A job with other settings, or with something beside it that no setting says."""

    name: str
    """What it is called in tables: ``checkpointing off``."""
    words: str
    """For people, after "if": ``activation checkpointing is off``."""
    plausibility: float
    """Relative to the other causes."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted job keys and their values; empty where no setting says it."""
    fix: str = ""
    """What to look at or to do, as an imperative; empty where the words say it."""
    allocated_bytes: int = 0
    """What it adds through torch's allocator, beside what the changes make; negative: takes away."""
    outside_bytes: int = 0
    """The same outside of torch's allocator."""
    loading_bytes: int = 0
    """The part of these that is there before the first step."""

    @property
    def keys(self) -> frozenset[str]:
        """What must not be changed by another cause at once."""
        without = {f"lora.{field.name}" for field in fields(Lora)} if "lora" in self.changes else set()
        copies = {"a copy of the weights"} if self.loading_bytes else set()
        return frozenset({self.name, *self.changes, *without, *copies})
