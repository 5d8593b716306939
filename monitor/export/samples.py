"""Samples of one moment: of the sampler itself, and of the board if it is recent. An unknown figure has no sample."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from ..board.board import Board, GpuRow, ProcessRow
from ..board.capacity import unusable_reason
from ..fleet.fleet import RankFacts
from ..host.plain_text import displayed_line
from ..snapshot.mig_devices import MigDevice
from ..snapshot.snapshot import GpuReading, ProcessKey
from . import metrics
from .latest_board import ReadingState

Labels = tuple[str, ...]
Sample = tuple[metrics.Metric, Labels, float | int | None]
"""A metric, the values of its labels, and its value; None: unknown, so there is no such series."""
Values = dict[Labels, float]
"""Values of a family by its labels."""


def values_by_family(state: ReadingState, version: str) -> dict[str, Values]:
    """Return the values of each family that has any; of samples with the same labels the first counts."""
    values: dict[str, Values] = {}
    for metric, labels, value in all_samples(state, version):
        if value is not None:
            values.setdefault(metric.family, {}).setdefault(labels, value)
    return values


def all_samples(state: ReadingState, version: str) -> Iterator[Sample]:
    """Yield the samples of a moment; without a recent board only those of the sampler.

    Args:
        state: the sampler and the board.
        version: of vramtop.
    """
    yield metrics.BUILD, (version,), 1
    yield metrics.SAMPLER_UP, (), int(state.board is not None)
    yield metrics.LAST_READING, (), state.read_at
    yield metrics.READING_AGE, (), state.age_seconds
    yield metrics.INTERVAL, (), state.interval_seconds
    yield metrics.READINGS, (), state.readings
    yield metrics.FAILURES, (), state.failures
    if state.failure is not None:
        yield metrics.HOST_FAULT, (state.failure,), 1
    if (board := state.board) is None:
        return
    source = board.snapshot.source
    yield metrics.HOST, tuple(map(label_text, (source.host, source.driver_version, source.cuda_version))), 1
    for reason in sorted({label_text(fault.code) for fault in board.snapshot.faults}):
        yield metrics.HOST_FAULT, (reason,), 1
    yield metrics.ATTACHED, (), sum(run.ended_at is None for run in board.runs)
    if (progress := board.attach_progress) is not None:
        yield metrics.UNREAD, (), progress.total - progress.read
    yield from gpu_samples(board)
    yield from process_samples(board, state.facts_of)
    yield from pending_samples(board)


def gpu_samples(board: Board) -> Iterator[Sample]:
    """Yield the samples of all GPUs; of one on which the driver hangs only its faults and the time of its reading."""
    for row in board.gpus:
        reading = row.reading
        uuid, index = gpu_labels(reading)
        gpu = (uuid, index)
        yield metrics.GPU, (*gpu, label_text(reading.name)), 1
        if reading.read_at:
            yield metrics.GPU_READING, gpu, reading.read_at
        # the sentence of a fault may have figures in it, so it is no label
        for figure, reason in sorted({(label_text(fault.field), label_text(fault.code)) for fault in reading.faults}):
            yield metrics.GPU_FAULT, (*gpu, figure, reason), 1
        if not reading.is_stale:
            yield from _figures(board, row, gpu)
            yield from _users(row, gpu)
            yield from _mig_devices(board, row, gpu)


def gpu_labels(reading: GpuReading) -> tuple[str, str]:
    """Return uuid and index of a metrics.GPU."""
    return label_text(reading.uuid), str(reading.index)


def _figures(board: Board, row: GpuRow, gpu: tuple[str, str]) -> Iterator[Sample]:
    reading, utilisation = row.reading, row.reading.utilisation_percent
    if (reason := unusable_reason(reading)) is not None:
        yield metrics.GPU_CLOSED, (*gpu, label_text(reason)), 1
    yield metrics.GPU_TOTAL, gpu, reading.total_bytes
    yield metrics.GPU_USED, gpu, reading.used_bytes
    yield metrics.GPU_FREE, gpu, reading.free_bytes
    yield metrics.GPU_RESERVED, gpu, reading.reserved_bytes
    yield metrics.GPU_UNATTRIBUTED, gpu, row.unattributed_bytes if reading.attributed_bytes is not None else None
    if reading.processes is not None:
        index = reading.index
        on_gpu = (size for at, size in board.committed.items() if (at if isinstance(at, int) else at[0]) == index)
        yield metrics.GPU_COMMITTED, gpu, sum(on_gpu)
    yield metrics.GPU_UTILISATION, gpu, None if utilisation is None else utilisation / 100
    yield metrics.GPU_TEMPERATURE, gpu, reading.temperature_c
    yield metrics.GPU_POWER, gpu, reading.power_w
    anomalous: Counter[str] = Counter()
    for anomaly in board.anomalies:
        if anomaly.gpu == reading.index:
            anomalous[anomaly.kind] += anomaly.held_bytes
    for kind, held in sorted(anomalous.items()):
        yield metrics.GPU_ANOMALOUS, (*gpu, kind), held


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
        yield metrics.GPU_PROCESSES, (*gpu, user), count
        yield metrics.GPU_USER_USED, (*gpu, user), sums[user]


def _mig_devices(board: Board, row: GpuRow, gpu: tuple[str, str]) -> Iterator[Sample]:
    for device in row.devices:
        reading = device.reading
        mig = (*gpu, reading.label)
        yield metrics.MIG_TOTAL, mig, reading.total_bytes
        yield metrics.MIG_USED, mig, reading.used_bytes
        yield metrics.MIG_FREE, mig, reading.free_bytes
        if isinstance(reading, MigDevice) and not reading.shares_memory_of:
            yield metrics.MIG_COMMITTED, mig, board.committed.get((reading.index, reading.device.gpu_instance), 0)
        attributed = reading.attributed_bytes is not None
        yield metrics.MIG_UNATTRIBUTED, mig, device.unattributed_bytes if attributed else None


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
                yield metrics.PROCESS_RUN, (*labels, str(first_ranks.get(key, "")), *_facts(facts_of(key))), 1
                yield from _process(row, labels)
    whole = {gpu.reading.key: gpu for gpu in board.gpus}
    for row in board.ended_processes:
        if row.comparison is not None and row.job is not None:
            labels = _labels(row, whole.get(row.gpu.whole_gpu_key))
            yield from _states(metrics.PROCESS_STATUS, labels, row.comparison.status)


def pending_samples(board: Board) -> Iterator[Sample]:
    """Yield the samples of each pending job; jobs of the same name are numbered."""
    seen: Counter[str] = Counter()
    for row in board.pending:
        name = label_text(row.job.label)
        seen[name] += 1
        labels = (name if seen[name] == 1 else f"{name} ({seen[name]})",)
        yield from _states(metrics.PENDING_VERDICT, labels, row.fit.verdict if row.fit else "unknown")
        yield metrics.PENDING_BUDGET, labels, row.budget.ranks.highest.device_bytes if row.budget else None
        yield metrics.PENDING_MARGIN, labels, row.fit.margin_bytes if row.fit else None


def _labels(row: ProcessRow, gpu: GpuRow | None) -> Labels:
    reading: GpuReading = gpu.reading if gpu is not None else row.gpu
    mig = row.gpu.label if isinstance(row.gpu, MigDevice) else ""
    job = label_text(row.job.label) if row.job is not None else ""
    return (*gpu_labels(reading), mig, job, label_text(row.process.user), str(row.process.pid))


def _facts(facts: RankFacts | None) -> Iterator[str]:
    """Yield the labels of a place in a run."""
    facts = facts or RankFacts()
    for value in (facts.rank, facts.world_size):
        yield "" if value is None else str(value)
    yield label_text(facts.master)


def _process(row: ProcessRow, labels: Labels) -> Iterator[Sample]:
    yield metrics.PROCESS_START, labels, row.process.start_time
    yield metrics.PROCESS_USED, labels, row.process.used_bytes
    yield metrics.PROCESS_HAS_BUDGET, labels, int(row.budget is not None)
    if row.budget is not None:
        peak = row.budget.peak
        yield metrics.PROCESS_BUDGET, labels, row.budget.steady_device_bytes
        yield metrics.PROCESS_LOW, labels, peak.low_bytes
        yield metrics.PROCESS_HIGH, labels, peak.shown_high_bytes
        for name, size in peak.components.items():
            yield metrics.PROCESS_COMPONENT, (*labels, name), size
        yield metrics.PROCESS_COMPONENT, (*labels, "slack"), max(0, peak.device_bytes - peak.components.total_bytes)
    comparison, counters = row.comparison, row.process.counters
    if comparison is not None:
        yield metrics.PROCESS_PEAK, labels, comparison.peak_usage.size_bytes if comparison.peak_usage else None
        yield metrics.PROCESS_DIVERGENCE, labels, comparison.difference_bytes
        yield from _states(metrics.PROCESS_STATUS, labels, comparison.status)
        if comparison.phase is not None:
            yield from _states(metrics.PROCESS_PHASE, labels, comparison.phase)
        if comparison.trend is not None:
            yield metrics.PROCESS_GROWTH, labels, comparison.trend.bytes_per_second
            if row.full_seconds is not None:
                yield metrics.PROCESS_FULL, labels, row.full_seconds
    if counters is not None:
        yield metrics.TORCH_ALLOCATED, labels, counters.allocated_bytes
        yield metrics.TORCH_RESERVED, labels, counters.reserved_bytes
        yield metrics.STEP_SECONDS, labels, counters.step_seconds
        yield metrics.STEPS, labels, counters.steps


def _states(metric: metrics.Metric, labels: Labels, current: str) -> Iterator[Sample]:
    for state in metric.states:
        yield metric, (*labels, state), int(state == current)


_MAX_CHARACTERS = 120


@lru_cache(maxsize=4096)  # the same few texts at each scrape
def label_text(text: str | None) -> str:
    """Return the value of a label; empty for what is unknown, which to Prometheus is the same as no label."""
    return displayed_line(text, _MAX_CHARACTERS)
