"""The JSON of ``vramtop estimate``, ``fit`` and ``wait``, and what they ask a scheduler for."""

from typing import Annotated, Any, TypedDict

from vramtop.estimator.advice.largest_fitting import LargestFitting
from vramtop.estimator.advice.setting_edits import Edit
from vramtop.estimator.budget import Method, PlainBudget
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.board.fit_result import FitResultJson

from ..fitting.cards import Card
from ..json_text import Versioned


class EstimateJson(TypedDict):
    """The predicted memory of the rank of a job with the highest peak; sizes are bytes."""

    notes: list[str]
    """What was assumed while the job was read, one sentence each."""


class _Suggestion(TypedDict):
    changes: dict[str, Any]
    """New values by dotted job key, such as `training.micro_batch`; null: the key is removed."""
    device_bytes: int
    """Expected peak of the changed job, as NVML counts the process."""
    low_bytes: int
    """Lower bound of that peak."""
    high_bytes: int
    """Upper bound of that peak."""
    verdict: Verdict
    """Whether the changed job fits."""
    method: Method
    """How it was estimated."""
    confirmed: bool
    """It was estimated as the job itself was, rather than quickly."""
    why: str
    """What the changes cost, in a few words."""
    slowdown: float
    """Share by which a step takes longer, as far as it is known; 0.3: 30 %."""
    quality: float
    """Loss of quality on the same scale, by which suggestions are ordered; 0: none."""
    sources: list[str]
    """Where the costs are from."""
    edits: list[Annotated[dict[str, Any], FieldsOf(Edit)]]
    """Edits of the user's command line or file that make the changes."""


class SuggestionJson(_Suggestion, total=False):
    """Changes with which the job takes less memory."""

    diff: str
    """The changes as a unified diff of the job file; absent: the job is from no job file, or cannot be edited there."""


class FitJson(FitResultJson, Versioned):
    """Whether a job fits, on which GPUs, and what makes it fit."""

    budget: PlainBudget
    """The estimate, as `vramtop estimate --json` prints it."""
    sentence: str
    """The verdict in words; without GPUs, why there is none."""
    suggestions: list[SuggestionJson]
    """Changes that make the job fit, or come closest, the best first; empty: it fits, or none is known."""
    largest: Annotated[dict[str, Any], FieldsOf(LargestFitting)] | None
    """The largest batch and sequence that fit; null: there are no GPUs here, or the model's family is
    unknown."""
    cards: list[Annotated[dict[str, Any], FieldsOf(Card)]] | None
    """Cards on which it fits, smallest first; null: there are GPUs to judge."""
    notes: list[str]
    """What was assumed while the job was read, and how GPUs were chosen, one sentence each."""


class SchedulerJson(Versioned):
    """What a job asks a scheduler for: Slurm (`--slurm`) or Kubernetes (`--kubernetes`)."""

    verdict: Verdict
    """Whether the job fits on the card that is given, or without one on any card of the catalogue."""
    request: list[str]
    """The lines for the scheduler; empty: the job does not fit."""
    nodes: int
    """Nodes or pods that the job takes."""
    gpus_per_node: int
    """GPUs of each, one for each rank."""
    cards: list[str]
    """Cards on which it fits, smallest first; empty: none, or only a size is given."""
    budget: PlainBudget
    """The estimate, as `vramtop estimate --json` prints it."""
    notes: list[str]
    """What is assumed or unknown, one sentence each."""
