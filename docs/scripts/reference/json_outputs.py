"""Every JSON that the command line prints or writes, by name: its type, the commands, and its title."""

from dataclasses import dataclass
from typing import Annotated, Any

from vramtop.estimator.budget import BudgetJson
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.estimator.crash.explanation import Explanation
from vramtop.estimator.job.job import Job
from vramtop.monitor.fleet.fleet import HostReading
from vramtop.monitor.snapshot.snapshot import Snapshot, resolve_annotations

from .json_types.attach import AttachJson
from .json_types.config import ConfigChangedJson, ConfigJson
from .json_types.doctor import DoctorJson
from .json_types.explain import ExplainJson, HeldJson
from .json_types.fit import EstimateJson, FitJson, SchedulerJson
from .json_types.history import ForgottenJson, HistoryJson
from .json_types.hosts import HostsJson, StreamLineJson
from .json_types.measure import MeasureJson
from .json_types.models import ModelsJson, ProgramJson
from .json_types.once import OnceJson
from .json_types.preflight import PreflightJson
from .json_types.written import (
    ExportJson,
    RecordingHeadJson,
    RecordJson,
    ReportJson,
    ServeJson,
    SnapshotJson,
)

resolve_annotations()  # of the records that recordings consist of


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One form of JSON."""

    kind: Any
    """The typed dict, or the record, that has its keys."""
    title: str
    """What it is, in a few words."""
    commands: tuple[str, ...]
    """Command lines that print it; empty: it is a part of others."""


OUTPUTS = {
    "estimate": Output(
        kind=Annotated[dict[str, Any], FieldsOf(BudgetJson, also=EstimateJson)],
        title="Predicted memory of a job",
        commands=("vramtop estimate JOB --json", "vramtop rehearse --json -- COMMAND"),
    ),
    "fit": Output(
        kind=FitJson,
        title="Whether a job fits on a machine",
        commands=(
            "vramtop fit JOB --json",
            "vramtop fit JOB --gpu-type NAME --json",
            "vramtop wait JOB --json",
            "vramtop run --fit --json -- COMMAND",
        ),
    ),
    "fit-scheduler": Output(
        kind=SchedulerJson,
        title="What a job asks a scheduler for",
        commands=("vramtop fit JOB --slurm --json", "vramtop fit JOB --kubernetes --json"),
    ),
    "once": Output(kind=OnceJson, title="One reading of this machine", commands=("vramtop --once --json",)),
    "once-hosts": Output(
        kind=HostsJson,
        title="One reading of several hosts",
        commands=("vramtop --once --json --host NAME", "vramtop --once --json --prometheus URL"),
    ),
    "stream": Output(
        kind=Annotated[dict[str, Any], FieldsOf(HostReading, also=StreamLineJson)],
        title="One line of a stream",
        commands=("vramtop stream",),
    ),
    "attach": Output(kind=AttachJson, title="A running job beside its budget", commands=("vramtop attach PID --json",)),
    "preflight": Output(kind=PreflightJson, title="Checks before a launch", commands=("vramtop preflight JOB --json",)),
    "models": Output(
        kind=ModelsJson,
        title="Models that are built in",
        commands=("vramtop models --json", "vramtop models WORD --json"),
    ),
    "program": Output(
        kind=ProgramJson, title="The script that a job stands for", commands=("vramtop program JOB --json",)
    ),
    "measure": Output(
        kind=MeasureJson,
        title="Real steps beside their prediction",
        commands=("vramtop measure JOB --json",),
    ),
    "history": Output(kind=HistoryJson, title="Measured runs", commands=("vramtop history --json",)),
    "history-forget": Output(
        kind=ForgottenJson, title="Measured runs that were removed", commands=("vramtop history --forget --json",)
    ),
    "explain": Output(
        kind=Annotated[dict[str, Any], FieldsOf(Explanation, also=ExplainJson)],
        title="Why a run ended out of memory",
        commands=("vramtop explain FILE --json",),
    ),
    "explain-snapshot": Output(
        kind=HeldJson,
        title="What a memory snapshot holds that shows no failure",
        commands=("vramtop explain SNAPSHOT --json",),
    ),
    "snapshot": Output(
        kind=SnapshotJson, title="The memory snapshot that was written", commands=("vramtop snapshot PID --json",)
    ),
    "record": Output(kind=RecordJson, title="The recording that was made", commands=("vramtop record FILE --json",)),
    "recording-head": Output(
        kind=RecordingHeadJson, title="First line of a recording", commands=("vramtop record FILE",)
    ),
    "recording-line": Output(
        kind=Annotated[dict[str, Any], FieldsOf(Snapshot)],
        title="Each further line of a recording: a reading",
        commands=("vramtop record FILE",),
    ),
    "report": Output(
        kind=ReportJson, title="The report that was written", commands=("vramtop report RECORDING --json",)
    ),
    "export": Output(kind=ExportJson, title="Where metrics are served", commands=("vramtop export --json",)),
    "serve": Output(kind=ServeJson, title="Where the dashboard is served", commands=("vramtop serve --json",)),
    "config": Output(
        kind=ConfigJson,
        title="Settings in force",
        commands=("vramtop config --json", "vramtop config NAME --json"),
    ),
    "config-change": Output(
        kind=ConfigChangedJson,
        title="The setting that was changed",
        commands=("vramtop config NAME VALUE --json", "vramtop config --unset NAME --json"),
    ),
    "doctor": Output(kind=DoctorJson, title="Facts about this machine", commands=("vramtop doctor --json",)),
    "job": Output(
        kind=Annotated[dict[str, Any], FieldsOf(Job)],
        title="A job: the tables of a job file",
        commands=(),
    ),
}
"""By name, which is that of the schema's file."""
