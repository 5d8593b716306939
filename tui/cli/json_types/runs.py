"""The JSON of ``vramtop attach`` and ``vramtop preflight``."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.budget import BudgetJson, FieldsOf, PlainJob
from vramtop.monitor.anomalies import AnomalyJson
from vramtop.monitor.attach import AttachmentJson
from vramtop.monitor.board.divergence import Status
from vramtop.monitor.preflight.context import CheckJson
from vramtop.monitor.probe.probe_reader import DeviceCounters

from .version import Versioned


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
    budget: BudgetJson | None
    """Its estimate, as `vramtop estimate --json` prints it; null: a required setting is missing."""
    observed_bytes: int | None
    """What the rank that holds the most holds now, as NVML counts the process; null: unknown."""
    oddities: list[AnomalyJson]
    """Anomalies of its processes."""
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


class PythonJson(TypedDict):
    """The interpreter that the job runs in."""

    path: str
    """Its path."""
    origin: str
    """How it was found."""


class PreflightJson(Versioned):
    """Everything that a job needs, checked."""

    job: str
    """Label of the job."""
    result: Literal["pass", "failure", "unknown"]
    """`pass`: no check fails; `failure`: one does; `unknown`: a decisive check came to no conclusion."""
    python: PythonJson
    """The interpreter that the job runs in."""
    checks: list[CheckJson]
    """The checks, in their order."""
    notes: list[str]
    """What was assumed while the job was read, one sentence each."""
