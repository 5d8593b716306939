"""The JSON of ``vramtop attach``."""

from typing import Annotated, Any, TypedDict

from vramtop.estimator.budget import PlainBudget, PlainJob
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.attach.gpu_assignment import Certainty
from vramtop.monitor.board.comparison import Status
from vramtop.monitor.probe.probe_reader import DeviceCounters

from .once import PlainAnomaly
from .versioned import Versioned


class RankJson(TypedDict):
    """The process of one rank on this machine."""

    pid: int
    """Its process id."""
    rank: int | None
    """Rank over all machines; null: a single process."""
    local_rank: int | None
    """Rank on this machine; null: a single process, or its environment does not say it."""
    gpu: int | None
    """NVML index of its GPU; null: unknown, or it has none."""
    gpu_from: str
    """Where the GPU was read: `NVML`, or variables of its environment."""
    gpu_sure: Certainty
    """How certain the GPU is: `certain` if the driver reports it."""
    gpu_hint: str | None
    """GPU that its environment names, an index or a UUID; null: it names none."""


class AttachmentJson(TypedDict):
    """A running job, as it was read from its processes."""

    pid: int
    """The process that was asked for."""
    ranks: list[RankJson]
    """The ranks of its run on this machine."""
    launcher: str | None
    """`torchrun`, `accelerate`, `deepspeed`, `trl`; null: started directly."""
    inside: list[str]
    """The batch job and container that it runs in, in words."""
    probe: bool
    """It runs with the probe."""
    command: str
    """Command line of the training program, without secrets."""
    versions: dict[str, str]
    """Versions of the installed frameworks, by name."""
    evidence: dict[str, str]
    """Where the value of each setting was read, by job key."""
    missing: list[str]
    """Job keys that are required and could not be read."""
    refused: dict[str, str]
    """Why a value that was read is not used, by job key."""
    warnings: list[str]
    """What could not be read, and what was read and not understood; one sentence each."""


class CauseJson(TypedDict):
    """Settings that would explain what the job holds."""

    changes: dict[str, Any]
    """Values by dotted job key."""
    words: str
    """Changes in words."""
    device_bytes: int
    """What the job would take with them, as NVML counts the process."""


class AttachJson(AttachmentJson, Versioned):
    """A running job beside its budget."""

    job: PlainJob | None
    """The job: the tables of a job file. null: a required setting is missing."""
    budget: PlainBudget | None
    """Its estimate, as `vramtop estimate --json` prints it; null: a required setting is missing."""
    observed_bytes: int | None
    """What the rank that holds the most holds now, as NVML counts the process; null: unknown."""
    anomalies: list[PlainAnomaly]
    """Anomalies of its processes: memory that is held and should not be."""
    oddities: list[PlainAnomaly]
    """The former name of `anomalies`; the next version has it no more."""
    faults: list[str]
    """What could not be read of the GPUs, one sentence each."""
    counters: list[Annotated[dict[str, Any], FieldsOf(DeviceCounters)]] | None
    """Counters of torch's allocator by GPU; null: it runs without the probe."""
    status: Status
    """Comparison of the run with its budget; `unknown`: it has none, or its memory is unknown."""
    divergence: str | None
    """Why it holds more or less than its budget, in words; null: it does not, or it is not known."""
    explanation: list[CauseJson]
    """Settings that would explain it, the most likely first."""
