"""The JSON of ``vramtop attach``."""

from typing import Annotated, Any, TypedDict

from vramtop.estimator.budget import PlainBudget, PlainJob
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.attach.attachment import AttachmentJson
from vramtop.monitor.board.comparison import Status
from vramtop.monitor.probe.probe_reader import DeviceCounters

from ..json_text import Versioned
from .once import PlainAnomaly


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
