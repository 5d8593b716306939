"""The JSON of ``vramtop estimate``, ``fit`` and ``wait``, and what they ask a scheduler for."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.advice.largest_fitting import LargestFitting
from vramtop.estimator.advice.setting_edits import Edit
from vramtop.estimator.budget import Method, PlainBudget
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.estimator.host_need import HostNeed
from vramtop.estimator.serving_need import ServingNeed
from vramtop.tui.cli.fitting.cards import Card

from .versioned import Versioned


class MigJson(TypedDict):
    """A MIG device: a part of a GPU."""

    profile: str | None
    """MIG profile, such as `1g.10gb`."""
    gpu_instance: int
    """GPU instance whose memory it has."""
    compute_instance: int
    """Compute instance of that GPU instance."""
    total_bytes: int | None
    """Its memory."""


class _FitGpu(TypedDict):
    index: int
    """NVML index of the GPU; of a MIG device, of the GPU that it is a part of."""
    uuid: str | None
    """UUID of the GPU or MIG device; null: described, not of this machine, or unknown."""
    name: str | None
    """Name of the card."""
    free_bytes: int | None
    """Free memory as NVML counts it now; of a described GPU, what its driver leaves."""
    committed_bytes: int
    """Free bytes that running jobs have still to allocate, or that are reserved for other jobs."""
    available_bytes: int | None
    """Free less committed bytes: what the job can have."""
    verdict: Verdict
    """Whether a rank fits on this GPU."""
    closed: str | None
    """Why no program can be started on it, whatever is free; null: one can be."""
    unread: str | None
    """Why its memory is unknown; null: it is known."""


class FitGpuJson(_FitGpu, total=False):
    """A GPU or MIG device that was considered."""

    mig: MigJson
    """The MIG device that this is; absent: it is a whole GPU."""


class HostVerdictJson(TypedDict):
    """Whether the RAM of the machine is enough for its ranks."""

    ranks: int
    """Ranks on the machine."""
    components: Annotated[dict[str, Any], FieldsOf(HostNeed)]
    """Bytes of RAM of one rank, by purpose."""
    loading_bytes: int
    """All ranks together, while they load the model."""
    steady_bytes: int
    """All ranks together, while they train."""
    saving_bytes: int
    """All ranks together, while they save a checkpoint."""
    high_bytes: int
    """Upper bound of the largest of the three, with pinned buffers rounded up."""
    verdict: Literal["fits", "tight", "does_not_fit"]
    """Whether it fits."""
    available_bytes: int
    """RAM that the job can have: free, or in caches that the system drops on demand."""
    assumption: str
    """What the figures take for granted, in one sentence."""


class ServingFitJson(TypedDict):
    """GPU memory that an engine (vLLM, SGLang) allocates on the GPU with the worst verdict."""

    least_bytes: int
    """Bytes with the cache of one sequence of full length, without which it does not start."""
    wanted_bytes: int
    """Bytes with the cache of all sequences at full length."""
    asked_bytes: int
    """Bytes that it takes: its share of the GPU."""
    cache_bytes: int
    """Bytes that remain for the key-value cache."""
    cache_tokens: int
    """Tokens that the cache holds."""
    concurrency: float
    """Number of full-length sequences that can run at once."""


class _Fit(TypedDict):
    verdict: Verdict
    """`fits`; `tight`: the expected peak fits, its upper bound does not; `unknown`: the expected peak does not fit, its
    lower bound does, or figures are missing; `does_not_fit`: not even the lower bound fits."""
    gpus: list[FitGpuJson]
    """Every GPU and MIG device that was considered, at most 1024 of them."""
    placement: list[int]
    """NVML index of each rank's GPU, in the order of the ranks, at most 1024 of them; the best placement if the job
    does not fit, empty if there is none."""
    placement_uuids: list[str | None]
    """UUIDs in the same order: entries of CUDA_VISIBLE_DEVICES; null: the GPU is described, not of this machine."""
    margin_bytes: int | None
    """Smallest margin over the chosen GPUs: available bytes less the expected peak; negative if the job does not fit;
    null: unknown, or there is no GPU."""


class FitResultJson(_Fit, total=False):
    """The verdict for a job, and the GPUs of its ranks."""

    gpus_total: int
    """Number of GPUs; absent: all are listed."""
    placement_total: int
    """Number of ranks; absent: all are listed."""
    host: HostVerdictJson
    """Whether the RAM of the machine is enough; absent: not checked."""
    serving: Annotated[dict[str, Any], FieldsOf(ServingNeed, also=ServingFitJson)]
    """Memory of the engine that serves the model; absent: none does."""


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
    """Cards on which it fits, smallest first; empty: on none, or the GPU was given by its size alone."""
    budget: PlainBudget
    """The estimate, as `vramtop estimate --json` prints it."""
    notes: list[str]
    """What is assumed or unknown, one sentence each."""
