"""The JSON of ``vramtop explain`` and ``vramtop snapshot``."""

from typing import Annotated, Any

from vramtop.estimator.advice import LargestFitting
from vramtop.estimator.budget import BudgetJson, FieldsOf
from vramtop.estimator.crash import ExplanationJson, FailureJson, MemorySnapshotJson

from .fit import SuggestionJson
from .version import Versioned


class ExplainJson(ExplanationJson, Versioned):
    """Why a run ended out of memory, and what would have fitted."""

    failures: list[FailureJson]
    """All failures of memory in the log, in their order; empty: the file is a memory snapshot."""
    budget: BudgetJson | None
    """The job's estimate, as `vramtop estimate --json` prints it; null: the job is not known."""
    suggestions: list[SuggestionJson]
    """Changes with which the job would have fitted, the best first; empty: none, or the job is not known."""
    largest: Annotated[dict[str, Any], FieldsOf(LargestFitting)] | None
    """The largest batch and sequence that would have fitted; null: unknown."""
    notes: list[str]
    """Where the job was found, or that it is not known; empty: it was given."""


class HeldJson(Versioned):
    """What a memory snapshot holds whose process had not run out of memory."""

    failure: None
    """Always null: nothing failed."""
    snapshot: MemorySnapshotJson
    """What the memory snapshot holds."""
    budget: BudgetJson | None
    """The job's estimate, as `vramtop estimate --json` prints it; null: the job is not known."""


class SnapshotJson(Versioned):
    """The memory snapshot that a process has written."""

    pid: int
    """The process."""
    file: str
    """Path of the snapshot."""
    bytes: int
    """Size of the file in bytes."""
