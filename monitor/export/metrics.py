"""The metrics of a board: their table, the samples of each part, and their text."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from vramtop.estimator.common.errors import Verdict

from ..board.board import stale_after_seconds
from ..board.capacity import unusable_reason
from ..board.comparison import Status
from ..board.run_phases import RunPhase
from ..fleet.fleet import RankFacts
from ..host.plain_text import displayed_line
from ..snapshot.faults import NO_DRIVER
from ..snapshot.mig_devices import MigDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric as Family

    from ..board.board import Board, GpuRow, ProcessRow
    from ..snapshot.faults import Fault
    from ..snapshot.snapshot import GpuReading, ProcessKey

# The metrics of ``vramtop export``: name, type, labels and meaning. ``docs/reference/metrics.md`` has the same table.
#
# Names follow https://prometheus.io/docs/practices/naming: base units, ``_total`` for counters, ``_info`` for facts.
# No label is called ``job``: Prometheus gives that name to the scrape job and would rename ours to ``exported_job``.


MetricType = Literal["gauge", "counter", "stateset", "info"]
_UNITS = ("bytes_per_second", "bytes", "seconds", "celsius", "watts", "ratio")


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    family: str
    """Name of the family: without ``_total`` and ``_info``."""
    type: MetricType
    labels: tuple[str, ...]
    """Labels of its samples, besides the state of a stateset."""
    help: str
    states: tuple[str, ...] = ()
    """All states of a stateset; its samples have the family's name as one more label, with the state."""

    @property
    def name(self) -> str:
        """Name of its samples."""
        return self.family + {"counter": "_total", "info": "_info"}.get(self.type, "")

    @property
    def unit(self) -> str:
        """Unit by its name; empty: it has none."""
        return next((unit for unit in _UNITS if self.family.endswith(f"_{unit}")), "")

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Labels of its samples."""
        return (*self.labels, self.family) if self.type == "stateset" else self.labels


TABLE: list[Metric] = []
"""All metrics, in the order in which they are served."""


def _metric(type_: MetricType, name: str, labels: tuple[str, ...], text: str, states: tuple[str, ...] = ()) -> Metric:
    metric = Metric(family=f"vramtop_{name}", type=type_, labels=labels, help=text, states=states)
    TABLE.append(metric)
    return metric


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return _metric("gauge", name, labels, text)


_NONE: tuple[str, ...] = ()
_GPU = ("uuid", "index")
_MIG = ("uuid", "index", "mig")
_PROCESS = ("uuid", "index", "mig", "job_name", "user", "pid")
_PENDING = ("job_name",)

BUILD = _metric("info", "build", ("version",), "Version of vramtop.")
HOST = _metric("info", "host", ("host", "driver_version", "cuda_version"), "Host name and versions of the driver.")
SAMPLER_UP = _gauge(
    "sampler_up", _NONE, "1 if the last reading is recent; 0 without a driver, or if there are no readings."
)
LAST_READING = _gauge("sampler_last_reading_timestamp_seconds", _NONE, "Unix time of the last reading.")
READING_AGE = _gauge("sampler_reading_age_seconds", _NONE, "Age of the last reading when the metrics were written.")
INTERVAL = _gauge("sampler_interval_seconds", _NONE, "Time between two readings (--interval).")
READINGS = _metric("counter", "sampler_readings", _NONE, "Readings since the exporter started.")
FAILURES = _metric("counter", "sampler_failures", _NONE, "Failed readings since the exporter started.")
HOST_FAULT = _gauge("host_fault", ("reason",), "1 for each fault of the machine as a whole, such as NO_DRIVER.")
ATTACHED = _gauge("attached_runs", _NONE, "Training runs that are compared with a budget.")
UNREAD = _gauge("attach_unread_runs", _NONE, "Runs found on the GPUs that have not been read yet.")

GPU = _metric("info", "gpu", ("uuid", "index", "name"), "The GPU's name.")
GPU_READING = _gauge("gpu_last_reading_timestamp_seconds", _GPU, "Unix time at which the GPU's memory was last read.")
GPU_FAULT = _gauge(
    "gpu_fault",
    ("uuid", "index", "field", "reason"),
    "1 for each figure that the driver does not give, with its error code; field is empty for the GPU as a whole.",
)
GPU_CLOSED = _gauge(
    "gpu_closed",
    ("uuid", "index", "reason"),
    "1 for a GPU on which no program can be started, whatever is free: its compute mode, MIG mode without a device.",
)
GPU_TOTAL = _gauge("gpu_memory_total_bytes", _GPU, "Memory of the GPU.")
GPU_USED = _gauge("gpu_memory_used_bytes", _GPU, "Memory in use, without what the driver reserves if it says that.")
GPU_FREE = _gauge("gpu_memory_free_bytes", _GPU, "Memory that a new job can have, by the driver's own figure.")
GPU_RESERVED = _gauge("gpu_memory_reserved_bytes", _GPU, "Memory reserved by driver and firmware.")
GPU_UNATTRIBUTED = _gauge("gpu_memory_unattributed_bytes", _GPU, "Memory in use that belongs to no visible process.")
GPU_COMMITTED = _gauge(
    "gpu_memory_committed_bytes", _GPU, "Free memory that running jobs will yet allocate by their budgets, or reserved."
)
GPU_ANOMALOUS = _gauge(
    "gpu_memory_anomalous_bytes",
    ("uuid", "index", "kind"),
    "Memory held by what should not be there: helpers, strays, forgotten processes, two ranks on one GPU.",
)
GPU_USER_USED = _gauge("gpu_user_memory_used_bytes", ("uuid", "index", "user"), "Memory of all processes of a user.")
GPU_PROCESSES = _gauge("gpu_user_processes", ("uuid", "index", "user"), "Processes of a user on the GPU.")
GPU_UTILISATION = _gauge("gpu_utilization_ratio", _GPU, "Share of time in which a program ran on the GPU, 0 to 1.")
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", _GPU, "Temperature of the GPU.")
GPU_POWER = _gauge("gpu_power_watts", _GPU, "Power that the GPU draws.")
MIG_TOTAL = _gauge("mig_memory_total_bytes", _MIG, "Memory of a MIG device; uuid is that of the whole GPU.")
MIG_USED = _gauge("mig_memory_used_bytes", _MIG, "Memory of a MIG device in use.")
MIG_FREE = _gauge("mig_memory_free_bytes", _MIG, "Memory of a MIG device that a new job can have.")
MIG_COMMITTED = _gauge("mig_memory_committed_bytes", _MIG, "Free memory of a MIG device that jobs will yet allocate.")
MIG_UNATTRIBUTED = _gauge("mig_memory_unattributed_bytes", _MIG, "Memory of a MIG device of no visible process.")

_RUN = ("run", "rank", "world_size", "master")
PROCESS_RUN = _metric(
    "info",
    "process_run",
    (*_PROCESS, *_RUN),
    "Its place in a run, which may span hosts; run is the pid of the run's first rank on this host.",
)
PROCESS_START = _gauge("process_start_time_seconds", _PROCESS, "Unix time at which the process of a known job started.")
PROCESS_USED = _gauge("process_memory_used_bytes", _PROCESS, "Memory of a process of a known job on one GPU.")
PROCESS_PEAK = _gauge("process_memory_peak_bytes", _PROCESS, "The most that it was seen to hold.")
PROCESS_HAS_BUDGET = _gauge("process_has_budget", _PROCESS, "1 if its job has a budget; 0 if it cannot be estimated.")
PROCESS_BUDGET = _gauge("process_budget_bytes", _PROCESS, "Its predicted memory in the steady state.")
PROCESS_LOW = _gauge("process_budget_low_bytes", _PROCESS, "Lower bound of its predicted memory.")
PROCESS_HIGH = _gauge("process_budget_high_bytes", _PROCESS, "Upper bound of its predicted memory.")
PROCESS_COMPONENT = _gauge(
    "process_budget_component_bytes",
    (*_PROCESS, "component"),
    "Its predicted memory at the peak by component; slack is what the allocator keeps beyond the others.",
)
PROCESS_DIVERGENCE = _gauge(
    "process_divergence_bytes", _PROCESS, "Observed less predicted memory; absent while settings are guessed."
)
PROCESS_STATUS = _metric(
    "stateset",
    "process_status",
    _PROCESS,
    "How it compares with its budget; one that has ended is ended or out_of_memory for a while.",
    get_args(Status),
)
PROCESS_PHASE = _metric("stateset", "process_phase", _PROCESS, "Phase of the run.", get_args(RunPhase))
PROCESS_GROWTH = _gauge(
    "process_memory_growth_bytes_per_second", _PROCESS, "Growth of a process that should be steady; absent otherwise."
)
PROCESS_FULL = _gauge(
    "process_memory_full_seconds", _PROCESS, "Time until this growth has filled the GPU; absent without growth."
)
TORCH_ALLOCATED = _gauge("process_torch_allocated_bytes", _PROCESS, "torch.cuda.memory_allocated, from the probe.")
TORCH_RESERVED = _gauge("process_torch_reserved_bytes", _PROCESS, "torch.cuda.memory_reserved, from the probe.")
STEP_SECONDS = _gauge("process_step_seconds", _PROCESS, "Duration of the last training step, from the probe.")
STEPS = _metric("counter", "process_steps", _PROCESS, "Training steps completed, from the probe.")

PENDING_VERDICT = _metric(
    "stateset", "pending_verdict", _PENDING, "Whether a pending job (--job) fits now.", get_args(Verdict)
)
PENDING_BUDGET = _gauge("pending_budget_bytes", _PENDING, "Predicted peak of its rank with the highest peak.")
PENDING_MARGIN = _gauge(
    "pending_margin_bytes", _PENDING, "Memory to spare on its worst GPU; negative if it does not fit."
)


# Text of labels: printable, without secrets, and of bounded length.


_MAX_CHARACTERS = 120


@lru_cache(maxsize=4096)  # the same few texts at each scrape
def label_text(text: str | None) -> str:
    """Return the value of a label; empty for what is unknown, which to Prometheus is the same as no label."""
    return displayed_line(text, _MAX_CHARACTERS)


# Samples of the GPUs and MIG devices of a board. A figure that the driver did not give has no sample.


def gpu_samples(board: Board) -> Iterator[Sample]:
    """Yield the samples of all GPUs; of one on which the driver hangs only its faults and the time of its reading."""
    for row in board.gpus:
        reading = row.reading
        uuid, index = gpu_labels(reading)
        gpu = (uuid, index)
        yield GPU, (*gpu, label_text(reading.name)), 1
        if reading.read_at:
            yield GPU_READING, gpu, reading.read_at
        for figure, reason in sorted({_fault(fault) for fault in reading.faults}):
            yield GPU_FAULT, (*gpu, figure, reason), 1
        if not reading.is_stale:
            yield from _figures(board, row, gpu)
            yield from _users(row, gpu)
            yield from _mig_devices(board, row, gpu)


def gpu_labels(reading: GpuReading) -> tuple[str, str]:
    """Return uuid and index of a GPU."""
    return label_text(reading.uuid), str(reading.index)


def _fault(fault: Fault) -> tuple[str, str]:
    """Return field and code; the sentence may have figures in it, so it is no label."""
    return label_text(fault.field), label_text(fault.code)


def _figures(board: Board, row: GpuRow, gpu: tuple[str, str]) -> Iterator[Sample]:
    reading, utilisation = row.reading, row.reading.utilisation_percent
    if (reason := unusable_reason(reading)) is not None:
        yield GPU_CLOSED, (*gpu, label_text(reason)), 1
    yield GPU_TOTAL, gpu, reading.total_bytes
    yield GPU_USED, gpu, reading.used_bytes
    yield GPU_FREE, gpu, reading.free_bytes
    yield GPU_RESERVED, gpu, reading.reserved_bytes
    yield GPU_UNATTRIBUTED, gpu, row.unattributed_bytes if reading.attributed_bytes is not None else None
    if reading.processes is not None:
        index = reading.index
        on_gpu = (size for at, size in board.committed.items() if (at if isinstance(at, int) else at[0]) == index)
        yield GPU_COMMITTED, gpu, sum(on_gpu)
    yield GPU_UTILISATION, gpu, None if utilisation is None else utilisation / 100
    yield GPU_TEMPERATURE, gpu, reading.temperature_c
    yield GPU_POWER, gpu, reading.power_w
    anomalous: Counter[str] = Counter()
    for anomaly in board.anomalies:
        if anomaly.gpu == reading.index:
            anomalous[anomaly.kind] += anomaly.held_bytes
    for kind, held in sorted(anomalous.items()):
        yield GPU_ANOMALOUS, (*gpu, kind), held


def _users(row: GpuRow, gpu: tuple[str, str]) -> Iterator[Sample]:
    """Yield memory and number of the processes of each user; no sum where the memory of one process is unknown."""
    counts: Counter[str] = Counter()
    sums: dict[str, int | None] = {}
    for process in row.reading.processes or ():
        user, size = label_text(process.user), process.used_bytes
        counts[user] += 1
        before = sums.get(user, 0)
        sums[user] = None if before is None or size is None else before + size
    for user, count in counts.items():
        yield GPU_PROCESSES, (*gpu, user), count
        yield GPU_USER_USED, (*gpu, user), sums[user]


def _mig_devices(board: Board, row: GpuRow, gpu: tuple[str, str]) -> Iterator[Sample]:
    for device in row.devices:
        reading = device.reading
        mig = (*gpu, reading.label)
        yield MIG_TOTAL, mig, reading.total_bytes
        yield MIG_USED, mig, reading.used_bytes
        yield MIG_FREE, mig, reading.free_bytes
        if isinstance(reading, MigDevice) and not reading.shares_memory_of:
            yield MIG_COMMITTED, mig, board.committed.get((reading.index, reading.device.gpu_instance), 0)
        attributed = reading.attributed_bytes is not None
        yield MIG_UNATTRIBUTED, mig, device.unattributed_bytes if attributed else None


# Samples of the processes whose job is known, and of the pending jobs.


if TYPE_CHECKING:
    Labels = tuple[str, ...]

_NO_FACTS = RankFacts()


def process_samples(board: Board, facts_of: Callable[[ProcessKey], RankFacts | None]) -> Iterator[Sample]:
    """Yield the samples of each process of a known job; of one that has ended only its status.

    Args:
        board: the board.
        facts_of: returns what the environment of a process says of its run.
    """
    first_ranks = {key: run.pids[0][0] for run in board.runs for key in run.pids}
    for gpu in board.gpus:
        if gpu.reading.is_stale:
            continue
        for row in gpu.rows:
            if row.job is not None:
                labels, key = _labels(row, gpu), row.process.key
                yield PROCESS_RUN, (*labels, str(first_ranks.get(key, "")), *_facts(facts_of(key))), 1
                yield from _process(row, labels)
    whole = {gpu.reading.key: gpu for gpu in board.gpus}
    for row in board.ended_processes:
        if row.comparison is not None and row.job is not None:
            labels = _labels(row, whole.get(row.gpu.whole_gpu_key))
            yield from _states(PROCESS_STATUS, labels, row.comparison.status)


def pending_samples(board: Board) -> Iterator[Sample]:
    """Yield the samples of each pending job; jobs of the same name are numbered."""
    seen: Counter[str] = Counter()
    for row in board.pending:
        name = label_text(row.job.label)
        seen[name] += 1
        labels = (name if seen[name] == 1 else f"{name} ({seen[name]})",)
        yield from _states(PENDING_VERDICT, labels, row.fit.verdict if row.fit else "unknown")
        yield PENDING_BUDGET, labels, row.budget.ranks.highest.device_bytes if row.budget else None
        yield PENDING_MARGIN, labels, row.fit.margin_bytes if row.fit else None


def _labels(row: ProcessRow, gpu: GpuRow | None) -> Labels:
    reading: GpuReading = gpu.reading if gpu is not None else row.gpu
    mig = row.gpu.label if isinstance(row.gpu, MigDevice) else ""
    job = label_text(row.job.label) if row.job is not None else ""
    return (*gpu_labels(reading), mig, job, label_text(row.process.user), str(row.process.pid))


def _facts(facts: RankFacts | None) -> Iterator[str]:
    """Yield the labels of a place in a run."""
    if facts is None:
        facts = _NO_FACTS
    for value in (facts.rank, facts.world_size):
        yield "" if value is None else str(value)
    yield label_text(facts.master)


def _process(row: ProcessRow, labels: Labels) -> Iterator[Sample]:
    yield PROCESS_START, labels, row.process.start_time
    yield PROCESS_USED, labels, row.process.used_bytes
    yield PROCESS_HAS_BUDGET, labels, int(row.budget is not None)
    yield from _budget(row, labels)
    comparison, counters = row.comparison, row.process.counters
    if comparison is not None:
        yield PROCESS_PEAK, labels, comparison.peak_usage.size_bytes if comparison.peak_usage else None
        yield PROCESS_DIVERGENCE, labels, comparison.difference_bytes
        yield from _states(PROCESS_STATUS, labels, comparison.status)
        if comparison.phase is not None:
            yield from _states(PROCESS_PHASE, labels, comparison.phase)
        if comparison.trend is not None:
            yield PROCESS_GROWTH, labels, comparison.trend.bytes_per_second
            if row.full_seconds is not None:
                yield PROCESS_FULL, labels, row.full_seconds
    if counters is not None:
        yield TORCH_ALLOCATED, labels, counters.allocated_bytes
        yield TORCH_RESERVED, labels, counters.reserved_bytes
        yield STEP_SECONDS, labels, counters.step_seconds
        yield STEPS, labels, counters.steps


def _budget(row: ProcessRow, labels: Labels) -> Iterator[Sample]:
    if row.budget is None:
        return
    peak = row.budget.peak
    yield PROCESS_BUDGET, labels, row.budget.steady_device_bytes
    yield PROCESS_LOW, labels, peak.low_bytes
    yield PROCESS_HIGH, labels, peak.shown_high_bytes
    for name, size in peak.components.items():
        yield PROCESS_COMPONENT, (*labels, name), size
    yield PROCESS_COMPONENT, (*labels, "slack"), max(0, peak.device_bytes - peak.components.total_bytes)


def _states(metric: Metric, labels: Labels, current: str) -> Iterator[Sample]:
    for state in metric.states:
        yield metric, (*labels, state), int(state == current)


# All samples of one moment: of the sampler itself, and of the board if it is recent.


if TYPE_CHECKING:
    Sample = tuple[Metric, tuple[str, ...], float | int | None]
    """A metric, the values of its labels, and its value; None: unknown, so there is no such series."""


def all_samples(state: ReadingState, version: str) -> Iterator[Sample]:
    """Yield the samples of a moment; without a recent board only those of the sampler.

    Args:
        state: the sampler and the board.
        version: of vramtop.
    """
    yield BUILD, (version,), 1
    yield SAMPLER_UP, (), int(state.board is not None)
    yield LAST_READING, (), state.read_at
    yield READING_AGE, (), state.age_seconds
    yield INTERVAL, (), state.interval_seconds
    yield READINGS, (), state.readings
    yield FAILURES, (), state.failures
    if state.failure is not None:
        yield HOST_FAULT, (state.failure,), 1
    if state.board is not None:
        yield from _board_samples(state)


def _board_samples(state: ReadingState) -> Iterator[Sample]:
    board = state.board
    if board is None:
        return
    source = board.snapshot.source
    yield HOST, tuple(map(label_text, (source.host, source.driver_version, source.cuda_version))), 1
    for reason in sorted({label_text(fault.code) for fault in board.snapshot.faults}):
        yield HOST_FAULT, (reason,), 1
    yield ATTACHED, (), sum(run.ended_at is None for run in board.runs)
    if (progress := board.attach_progress) is not None:
        yield UNREAD, (), progress.total - progress.read
    yield from gpu_samples(board)
    yield from process_samples(board, state.facts_of)
    yield from pending_samples(board)


# The metrics as text, by prometheus-client's encoders, in the format that a client asks for.
#
# The encoders take some 10 µs a sample, and a process of a known job has forty, most of which stay the same for
# hours: budgets, states, labels of a run. A family whose samples are those of the scrape before is not encoded again.


if TYPE_CHECKING:
    Encoder = Callable[..., bytes]
    Values = dict[tuple[str, ...], float]
    """Values of a family by its labels."""

_EOF = b"# EOF\n"
_MAX_FORMATS = 4
"""Formats that are remembered at once: clients may ask for any version."""


@dataclass(slots=True)
class MetricsText:
    """Makes the text anew at each scrape, from the latest board. Safe to use from several threads.

    Args:
        latest: the board.
        version: of vramtop.
        with_process: with prometheus-client's own metrics of the exporter's process (``process_cpu_seconds_total``);
            not in a file for node_exporter, which has metrics of these names itself.
    """

    latest: LatestBoard
    version: str
    with_process: bool = True
    _encoded: dict[str, dict[str, tuple[Values, bytes]]] = field(default_factory=dict, init=False)
    """What was encoded last, by content type and family."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def encode(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return the text and its content type.

        Args:
            accept: the client's Accept header; None: the text format of node_exporter's files.
        """
        encoder, content_type = _choose_encoder(accept)
        with self._lock:
            if content_type not in self._encoded and len(self._encoded) >= _MAX_FORMATS:
                self._encoded.clear()
            known = self._encoded.setdefault(content_type, {})
            values = self._values()
            parts = [
                _encode(encoder, metric, values[metric.family], known) for metric in TABLE if metric.family in values
            ]
        if self.with_process:
            from prometheus_client import ProcessCollector

            parts.append(encoder(ProcessCollector(registry=None)).removesuffix(_EOF))
        is_open = content_type.startswith("application/openmetrics-text")
        return b"".join(parts) + (_EOF if is_open else b""), content_type

    def _values(self) -> dict[str, Values]:
        """Return the values of each family that has any; of samples with the same labels the first counts."""
        values: dict[str, Values] = {}
        for metric, labels, value in all_samples(self.latest.state(), self.version):
            if value is not None:
                values.setdefault(metric.family, {}).setdefault(labels, value)
        return values


def _choose_encoder(accept: str | None) -> tuple[Encoder, str]:
    from prometheus_client.exposition import choose_encoder

    try:
        return choose_encoder(accept or "")
    except (TypeError, ValueError):  # no number where the version should be
        return choose_encoder("")


def _encode(encoder: Encoder, metric: Metric, values: Values, known: dict[str, tuple[Values, bytes]]) -> bytes:
    """Return the text of a family; ``known`` holds that of the scrape before, and then this one."""
    before = known.get(metric.family)
    if before is not None and before[0] == values:
        return before[1]
    text = encoder(_Families([_family(metric, values)])).removesuffix(_EOF)
    known[metric.family] = values, text
    return text


def _family(metric: Metric, values: Values) -> Family:
    from prometheus_client.core import Metric as Family

    family = Family(metric.family, metric.help, metric.type, metric.unit)
    names = metric.all_labels
    for labels, value in values.items():
        family.add_sample(metric.name, dict(zip(names, labels, strict=True)), value)
    return family


class _Families(msgspec.Struct, frozen=True):
    """What an encoder asks for families."""

    families: Sequence[Family]

    def collect(self) -> Iterable[Family]:
        """Return the families."""
        return self.families


# The latest board, and whether it is recent enough to be exported.


class ReadingState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the sampler at one moment."""

    board: Board | None
    """The latest board; None: there was none, it is too old, or the driver failed since."""
    interval_seconds: float
    readings: int
    failures: int
    read_at: float | None
    """Unix seconds of the last reading; None: there was none."""
    age_seconds: float | None
    """Age of that reading."""
    facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None
    """What the environment of a process says of its run."""
    failure: str | None = None
    """Fault code of what keeps the sampler from reading; None: nothing does."""


class LatestBoard:
    """Keeps the latest board. Safe to use from several threads.

    One that is too old (``stale_after_seconds``) is not exported.

    Args:
        interval: seconds between two readings.
        facts_of: returns what the environment of a process says of its run; called at each scrape.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        interval: float,
        *,
        facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = interval
        self._facts_of = facts_of
        self._clock = clock
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._started_at = clock()
        self._board_at = 0.0
        self._read_at: float | None = None
        self._readings = self._failures = 0
        self._failure: str | None = None

    @property
    def stale_seconds(self) -> float:
        """Age from which a board is not exported."""
        return stale_after_seconds(self._interval)

    def set(self, board: Board) -> None:
        """Take a new board; one of a machine without a driver is a failure."""
        if any(fault.code == NO_DRIVER for fault in board.snapshot.faults):
            self.fail(NO_DRIVER)
            return
        with self._lock:
            self._board, self._board_at, self._read_at = board, self._clock(), board.snapshot.time
            self._readings += 1
            self._failure = None

    def fail(self, code: str) -> None:
        """Note that the source has failed: the figures of the last board are not exported any more."""
        with self._lock:
            self._board, self._failure = None, code
            self._failures += 1

    def state(self) -> ReadingState:
        """Return the latest board, if it is recent."""
        with self._lock:
            age = None if self._read_at is None else self._clock() - self._board_at
            waited = self._clock() - self._started_at if age is None else age
            is_stale = waited > self.stale_seconds
            return ReadingState(
                board=None if is_stale else self._board,
                interval_seconds=self._interval,
                readings=self._readings,
                failures=self._failures,
                read_at=self._read_at,
                age_seconds=age,
                facts_of=self._facts_of,
                failure=self._failure or ("NO_READING" if is_stale else None),
            )
