"""The JSON of ``vramtop explain``."""

from typing import Annotated, Any

from vramtop.estimator.advice.largest_fitting import LargestFitting
from vramtop.estimator.budget import PlainBudget
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.estimator.crash.records import Failure
from vramtop.estimator.crash.snapshot.records import MemorySnapshot

from .fit import SuggestionJson
from .versioned import Versioned


class ExplainJson(Versioned):
    """Why a run ended out of memory, and what would have fitted."""

    failures: list[Failure]
    """All failures of memory in the log, in their order; empty: the file is a memory snapshot."""
    budget: PlainBudget | None
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
    snapshot: MemorySnapshot
    """What the memory snapshot holds."""
    budget: PlainBudget | None
    """The job's estimate, as `vramtop estimate --json` prints it; null: the job is not known."""
