"""The JSON of a fit check, key by key (``vramtop fit --json``); its schema is made from these types."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.budget import FieldsOf, HostNeedJson, ServingNeed

from .verdict import Verdict


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
    """Free bytes that running jobs will yet allocate, or that are reserved for others."""
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


class HostVerdictJson(HostNeedJson):
    """Whether the RAM of the machine is enough."""

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
    """Sequences of full length that run at once."""


class _Fit(TypedDict):
    verdict: Verdict
    """`fits`; `tight`: the expected peak fits, its upper bound does not; `does_not_fit`; `unknown`: figures are
    missing."""
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
