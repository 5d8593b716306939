"""The JSON of ``vramtop estimate`` and ``vramtop fit``, and of ``vramtop models``, which they take."""

from typing import Annotated, Any, TypedDict

from vramtop.estimator.advice import Edit, LargestFitting, Verdict
from vramtop.estimator.budget import BudgetJson, FieldsOf, Method
from vramtop.monitor.board.fit import FitResultJson
from vramtop.monitor.fleet.placing import FleetFitJson

from .version import Versioned


class EstimateJson(BudgetJson):
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


class CardJson(TypedDict):
    """A card of the catalogue on which the job certainly fits."""

    gpu: str
    """Its name in the catalogue, as for `--gpu-type`."""
    name: str
    """Its name for people."""
    total_bytes: int
    """Its memory."""
    gpus: int
    """GPUs that the job takes."""
    strategy: str | None
    """Value of `parallel.strategy` that the job is changed to, to use several; null: it stays as it is."""
    device_bytes: int
    """Expected peak on each."""


class FitJson(FitResultJson, Versioned):
    """Whether a job fits, on which GPUs, and what makes it fit."""

    budget: BudgetJson
    """The estimate, as `vramtop estimate --json` prints it."""
    sentence: str
    """The verdict in words; without GPUs, why there is none."""
    suggestions: list[SuggestionJson]
    """Changes that make the job fit, or come closest, the best first; empty: it fits, or none is known."""
    largest: Annotated[dict[str, Any], FieldsOf(LargestFitting)] | None
    """The largest batch and sequence that fit; null: there are no GPUs here, or the model's family is
    unknown."""
    cards: list[CardJson] | None
    """Cards on which it fits, smallest first; null: there are GPUs to judge."""
    notes: list[str]
    """What was assumed while the job was read, and how GPUs were chosen, one sentence each."""


class FitOverHostsJson(FleetFitJson, Versioned):
    """Which hosts can take a job, and where it should go."""

    budget: BudgetJson | None
    """The estimate on the first host's type of GPU; null: no host was considered."""
    sentence: str
    """The verdict in words."""
    notice: str | None
    """What is wrong with the source of the hosts as a whole; null: nothing."""
    notes: list[str]
    """What was assumed while the job was read, and what is not checked, one sentence each."""


class ModelJson(TypedDict):
    """A built-in model."""

    name: str
    """A name to type: the first that has the word that was given."""
    id: str
    """Hub id."""
    label: str
    """Display name."""
    aliases: list[str]
    """Further names: other models of the same shape, and shorter names."""
    parameters: int
    """Number of parameters with the head of its usual task."""
    weight_bytes: int
    """Bytes of its weights in `dtype`."""
    dtype: str | None
    """Type of its weights, as its config states it; null: it states none, and `weight_bytes` is that of bfloat16."""
    family: str
    """`model_type` of its config."""


class ModelsJson(Versioned):
    """The built-in models, those whose names have the word that was given."""

    models: list[ModelJson]
    """The models, family by family."""
