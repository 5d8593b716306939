"""The JSON that each command prints with ``--json``, key by key: type checkers hold the commands to it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.advice.largest_fitting import LargestFitting
from vramtop.estimator.advice.setting_edits import Edit
from vramtop.estimator.budget import Method, PlainBudget, PlainJob
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.estimator.crash.explanation import ExplanationJson
from vramtop.estimator.crash.records import FailureJson
from vramtop.estimator.crash.snapshot.records import MemorySnapshotJson
from vramtop.estimator.learning.measurement_json import MeasurementJson
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.attach.attachment import AttachmentJson
from vramtop.monitor.board.comparison import Status
from vramtop.monitor.board.fit_result import FitResultJson
from vramtop.monitor.doctor.facts import (
    DataFolderFacts,
    Driver,
    GpuFacts,
    InterpreterFacts,
    PermissionFacts,
    SystemFacts,
)
from vramtop.monitor.doctor.issues import Issue
from vramtop.monitor.fleet.fleet import HostReading
from vramtop.monitor.host.known_programs import ProcessKind
from vramtop.monitor.preflight.check_result import CheckJson
from vramtop.monitor.probe.probe_reader import DeviceCounters
from vramtop.monitor.snapshot.faults import Fault
from vramtop.monitor.snapshot.snapshot import Source

from ..tty.terminal_facts import TerminalFacts
from .json_text import Versioned

# The JSON of ``vramtop estimate`` and ``vramtop fit``, and of ``vramtop models``, which they take.


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

    budget: PlainBudget
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


class ModelJson(TypedDict):
    """A model that is known by name."""

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
    """The models that are known by name, those whose names have the word that was given."""

    models: list[ModelJson]
    """The models, family by family."""


class ProgramJson(Versioned):
    """The training script that a described job stands for."""

    command: str
    """The command that starts it."""
    script: str
    """Its text."""


# The JSON of ``vramtop explain`` and ``vramtop snapshot``.


class ExplainJson(ExplanationJson, Versioned):
    """Why a run ended out of memory, and what would have fitted."""

    failures: list[FailureJson]
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
    snapshot: MemorySnapshotJson
    """What the memory snapshot holds."""
    budget: PlainBudget | None
    """The job's estimate, as `vramtop estimate --json` prints it; null: the job is not known."""


class SnapshotJson(Versioned):
    """The memory snapshot that a process has written."""

    pid: int
    """The process."""
    file: str
    """Path of the snapshot."""
    bytes: int
    """Size of the file in bytes."""


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


# The JSON of commands that write or serve something, and of the lines of recordings and streams.


class RecordJson(Versioned):
    """The recording that was made."""

    file: str
    """Path of the recording."""
    snapshots: int
    """Number of readings in it."""


class ReportJson(Versioned):
    """The report that was written."""

    file: str | None
    """Path of the HTML file; null: it was printed."""


class ServeJson(Versioned):
    """Where the dashboard is served."""

    address: str
    """The address with its secret token: whoever has it sees the dashboard."""


class ExportJson(Versioned):
    """Where the metrics are served."""

    url: str
    """Address that a Prometheus scrapes."""


class RecordingHeadJson(TypedDict):
    """The first line of a recording; each further line is a reading."""

    vramtop_recording: Literal[1]
    """Version of the format of recordings; a later one only if a field changes its meaning."""
    source: Annotated[dict[str, Any], FieldsOf(Source)]
    """Where the readings are from."""
    time: float
    """Unix seconds of the first reading."""


class StreamLineJson(TypedDict):
    """A host at one moment, a line of `vramtop stream`: unknown figures, and fields at their defaults, are left out."""

    schema: Literal[1]
    """Version of this format, the first key of the line; a later one only if a field changes its meaning."""


# The JSON of ``vramtop --once`` over several hosts.


class HostsSourceJson(TypedDict):
    """Where the readings are from."""

    kind: Literal["hosts"]
    """Several hosts, over ssh or from a Prometheus."""


class TotalsJson(TypedDict):
    """Sums over the GPUs of live hosts."""

    hosts: int
    """Hosts that were asked."""
    silent_hosts: int
    """Hosts that are silent or unreachable; nothing of theirs is in the other figures."""
    connecting_hosts: int
    """Hosts that have not answered for the first time; likewise."""
    gpus: int
    """GPUs with known figures of now."""
    unknown_gpus: int
    """GPUs whose memory is unknown, or of an earlier time."""
    total_bytes: int | None
    """Memory of these GPUs; null: no GPU has known figures."""
    used_bytes: int | None
    """Used memory; null: likewise."""
    free_bytes: int | None
    """Free memory; null: likewise."""
    committed_bytes: int | None
    """Free memory that running jobs will yet allocate, or that is reserved; null: likewise."""
    unattributed_bytes: int | None
    """Used memory of no visible process; null: likewise."""
    unattributed_unknown: int
    """GPUs whose unattributed memory is unknown: the sum is a lower bound."""
    processes: int
    """Processes on these GPUs."""
    diverging: int
    """Processes that are over, under, growing or out of memory."""


class HostJson(TypedDict):
    """One host at one moment; of one that is not live, the figures are of `age_seconds` ago."""

    age_seconds: float | None
    """Seconds since its last sign of life; null: it is live, or there was none."""


class HostsJson(Versioned):
    """Several hosts at one moment: their sums and their GPUs."""

    time: str
    """Time of this output, ISO 8601 in UTC."""
    source: HostsSourceJson
    """Where the readings are from."""
    notice: str | None
    """What is wrong with the source of the hosts as a whole; null: nothing."""
    totals: TotalsJson
    """Sums over the live hosts."""
    hosts: list[Annotated[dict[str, Any], FieldsOf(HostReading, is_whole=True, also=HostJson)]]
    """The hosts, in the order in which they were named."""


# The JSON of ``vramtop doctor``.


class DoctorJson(Versioned):
    """Facts about this machine for a bug report, without names of users and hosts."""

    findings: list[Annotated[dict[str, Any], FieldsOf(Issue)]]
    """What is wrong or unusual, the most severe first."""
    system: Annotated[dict[str, Any], FieldsOf(SystemFacts)]
    """The system."""
    driver: Annotated[dict[str, Any], FieldsOf(Driver)]
    """The driver."""
    gpus: list[Annotated[dict[str, Any], FieldsOf(GpuFacts)]]
    """The GPUs."""
    access: Annotated[dict[str, Any], FieldsOf(PermissionFacts)]
    """What this user may do."""
    terminal: Annotated[dict[str, Any], FieldsOf(TerminalFacts)]
    """The terminal."""
    pythons: list[Annotated[dict[str, Any], FieldsOf(InterpreterFacts)]]
    """Interpreters that could run vramtop's workers."""
    files: Annotated[dict[str, Any], FieldsOf(DataFolderFacts)]
    """The data folder."""
    changed_settings: list[str]
    """Names of the settings that are not at their defaults; their values may name hosts."""


# The JSON of ``vramtop history``.


class HistoryJson(Versioned):
    """The runs that were measured on this account."""

    runs: list[MeasurementJson]
    """The runs, the newest first."""


class ForgottenJson(Versioned):
    """How many runs were removed (`--forget`)."""

    forgotten: int
    """Number of runs."""


# The JSON of ``vramtop --once`` on one machine.


PlainAnomaly = Annotated[dict[str, Any], FieldsOf(Anomaly)]
PlainFault = Annotated[dict[str, Any], FieldsOf(Fault)]


class SourceJson(TypedDict):
    """Where the reading is from."""

    kind: Literal["nvml", "recording", "demo"]
    """`nvml`: this machine's driver."""
    host: str | None
    """Name of the machine."""
    driver_version: str | None
    """Version of the driver."""
    cuda_version: str | None
    """Latest CUDA version that the driver supports."""


class ProcessJson(TypedDict):
    """One process on one GPU."""

    pid: int
    """Its process id."""
    gpu_instance: int | None
    """GPU instance that it runs in (MIG); null: the GPU is not in MIG mode, or unknown."""
    compute_instance: int | None
    """Compute instance of that GPU instance; null: likewise."""
    used_bytes: int | None
    """Memory of the process on this GPU as NVML counts it, CUDA context included."""
    user: str | None
    """Its user."""
    command: str | None
    """Its command line, without secrets."""
    kind: ProcessKind
    """What it is; `unknown`: its command line cannot be read."""
    program: str | None
    """Kind in words, with the program's name if it is known; null: nothing to say."""
    elapsed_seconds: float | None
    """Time since it started."""
    runs_in: str | None
    """Slurm job, Kubernetes pod or container that it runs in; null: none, or unknown."""
    note: str | None
    """Why something is unknown or unusual, in a few words; null: nothing is."""
    job: str | None
    """Label of its job; null: unknown."""
    budget_bytes: int | None
    """Memory that its budget predicts between steps; null: it has no budget."""
    status: Status | None
    """Comparison of the process with its budget; null: it has none."""
    no_budget_reason: str | None
    """Why it has no budget, in a word or two; null: it has one, or there is nothing to say."""


class MigDeviceJson(TypedDict):
    """One MIG device of a GPU."""

    label: str
    """Its name in tables: `0:3`."""
    uuid: str | None
    """Its UUID."""
    profile: str | None
    """MIG profile, such as `1g.10gb`."""
    gpu_instance: int
    """GPU instance whose memory it has."""
    compute_instance: int
    """Compute instance of that GPU instance."""
    total_bytes: int | None
    """Memory of its GPU instance."""
    used_bytes: int | None
    """Used memory of its GPU instance."""
    reserved_bytes: int | None
    """Reserved by the driver."""
    free_bytes: int | None
    """Free memory of its GPU instance."""
    unattributed_bytes: int | None
    """Used memory of no visible process; null: unknown, or another device of the list has the same memory."""
    shares_memory_of: str | None
    """Label of the device that lists the same memory; null: none before it does."""
    pids: list[int] | None
    """Processes that run in it; null: could not be read."""
    faults: list[PlainFault]
    """What could not be read."""


class GpuJson(TypedDict):
    """One GPU."""

    index: int
    """NVML index."""
    uuid: str | None
    """UUID."""
    name: str | None
    """Name of the card."""
    total_bytes: int | None
    """Its memory: reserved, used and free together."""
    used_bytes: int | None
    """Used memory; where `reserved_bytes` is null, the reserved memory is in it."""
    reserved_bytes: int | None
    """Reserved by driver and firmware; null: unknown, as with old drivers."""
    free_bytes: int | None
    """What a new job can have."""
    unattributed_bytes: int | None
    """Used memory of no visible process; null: unknown."""
    utilisation_percent: int | None
    """Share of time in which a program ran on it, 0 to 100."""
    memory_utilisation_percent: int | None
    """Share of time in which its memory was read or written, 0 to 100."""
    temperature_c: int | None
    """Temperature in degrees Celsius."""
    power_w: float | None
    """Power in watts."""
    processes: list[ProcessJson] | None
    """Processes on it, the largest first; null: could not be read."""
    mig: list[MigDeviceJson] | None
    """Its MIG devices; null: MIG mode is off, or unknown."""
    faults: list[PlainFault]
    """What could not be read."""


class RunJson(TypedDict):
    """One run: the ranks of a job on this machine."""

    job: str
    """Label of the job."""
    pids: list[int]
    """Its ranks."""
    gpus: list[int]
    """NVML indices of their GPUs."""
    missing: list[str]
    """Job keys that could not be read, and are guessed."""
    budget_bytes: int | None
    """Memory that the budget predicts for a rank between steps; null: no budget."""
    low_bytes: int | None
    """Lower bound of the predicted peak of a rank; null: no budget."""
    high_bytes: int | None
    """Upper bound of the predicted peak of a rank; null: no budget."""
    problem: str | None
    """Why the job has no budget; null: it has one."""


class PendingJson(TypedDict):
    """A job that is not running yet (`--job FILE`)."""

    job: str
    """Label of the job."""
    verdict: Verdict
    """Whether it fits now."""
    device_bytes: int | None
    """Expected peak of a rank, as NVML counts the process; null: no budget."""
    sentence: str | None
    """The verdict in words, or why there is no budget; null: neither is known."""


class HiddenJson(TypedDict):
    """What is not in the output, because options ask for a part only."""

    options: str
    """These options."""
    hidden_gpus: list[str]
    """Labels of GPUs and MIG devices that are left out."""
    hidden_processes: int
    """Number of processes that are left out."""
    hidden_used_bytes: int
    """Memory of these processes, as far as it is known."""


class OnceJson(Versioned):
    """The GPUs of one machine at one moment, with their processes and the budgets of known jobs."""

    time: str
    """Time of the reading, ISO 8601 in UTC."""
    source: SourceJson
    """Where the reading is from."""
    faults: list[PlainFault]
    """What could not be read of the machine as a whole."""
    filter: HiddenJson | None
    """What options such as `--user` leave out; null: nothing was asked to be left out."""
    gpus: list[GpuJson]
    """The GPUs, by index."""
    runs: list[RunJson]
    """Runs of known jobs."""
    pending: list[PendingJson]
    """Pending jobs, in the order of `--job`."""
    anomalies: list[PlainAnomaly]
    """Memory that is held and should not be."""
    oddities: list[PlainAnomaly]
    """The former name of `anomalies`; the next version has it no more."""


# The JSON of ``vramtop attach`` and ``vramtop preflight``.


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


# The JSON of ``vramtop config``.


PlainValue = bool | int | float | str | Sequence[str]


class SettingJson(TypedDict):
    """One setting."""

    name: str
    """Its name with its table: `dashboard.interval`."""
    value: PlainValue
    """Its value in force."""
    origin: str
    """Where that is from: `default`, `file`, or the flag or environment variable that sets it."""
    line: int | None
    """Line of the settings file; null: it is not from there."""
    default: PlainValue
    """Its default."""
    about: str
    """What it does, in one sentence."""
    flag: str | None
    """Flag that takes precedence over it; null: there is none."""
    environment: str | None
    """Environment variable that takes precedence over it; null: there is none."""


class ProblemJson(TypedDict):
    """Something in the settings that is wrong."""

    setting: str | None
    """Name of the setting; null: the file as a whole is wrong."""
    line: int | None
    """Line of the settings file; null: it is not from there, or unknown."""
    sentence: str
    """What is wrong, and what to do."""


class ConfigJson(Versioned):
    """The settings in force, and where each is from."""

    file: str
    """Path of the settings file."""
    file_exists: bool
    """The file is there."""
    settings: list[SettingJson]
    """The settings that were asked for."""
    problems: list[ProblemJson]
    """What is wrong in them; those settings have their defaults."""


class ConfigPathJson(Versioned):
    """Where the settings file is (`--path`)."""

    file: str
    """Path of the settings file, whether it exists or not."""


class ConfigChangedJson(Versioned):
    """A setting that was changed in the file."""

    file: str
    """Path of the settings file."""
    setting: str
    """Name of the setting."""
    value: PlainValue | None
    """Its value in the file now; null: it was removed from it."""
