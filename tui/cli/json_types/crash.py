"""The JSON of ``vramtop explain`` and ``vramtop snapshot``."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.advice import LargestFitting
from vramtop.estimator.budget import BudgetJson, FieldsOf
from vramtop.estimator.crash import ExplanationJson, FailureJson, MemorySnapshotJson

from .fit import SuggestionJson


class ExplainJson(ExplanationJson):
    """Why a run ended out of memory, and what would have fitted."""

    schema: Literal[1]
    """Version of this format; a later one only if a field changes its meaning."""
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


class HeldJson(TypedDict):
    """What a memory snapshot holds whose process had not run out of memory."""

    schema: Literal[1]
    """Version of this format; a later one only if a field changes its meaning."""
    failure: None
    """Always null: nothing failed."""
    snapshot: MemorySnapshotJson
    """What the memory snapshot holds."""
    budget: BudgetJson | None
    """The job's estimate, as `vramtop estimate --json` prints it; null: the job is not known."""


class SnapshotJson(TypedDict):
    """The memory snapshot that a process has written."""

    schema: Literal[1]
    """Version of this format; a later one only if a field changes its meaning."""
    pid: int
    """The process."""
    file: str
    """Path of the snapshot."""
    bytes: int
    """Size of the file in bytes."""
