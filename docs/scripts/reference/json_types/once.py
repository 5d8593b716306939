"""The JSON of ``vramtop --once`` on one machine."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.board.comparison import Status
from vramtop.monitor.host.known_programs import ProcessKind
from vramtop.monitor.snapshot.figures import Fault

from .versioned import Versioned

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
