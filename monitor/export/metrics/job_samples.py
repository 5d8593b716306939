"""Samples of the processes whose job is known, and of the pending jobs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...fleet import RankFacts
from ...snapshot import MigDevice
from . import metric_table as table
from .gpu_samples import gpu_labels
from .label_text import label_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...board import Board, GpuRow, ProcessRow
    from ...snapshot import GpuReading, ProcessKey
    from .samples import Sample

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
                yield table.PROCESS_RUN, (*labels, str(first_ranks.get(key, "")), *_facts(facts_of(key))), 1
                yield from _process(row, labels)
    whole = {gpu.reading.key: gpu for gpu in board.gpus}
    for row in board.ended_processes:
        if row.comparison is not None and row.job is not None:
            labels = _labels(row, whole.get(row.gpu.whole_gpu_key))
            yield from _states(table.PROCESS_STATUS, labels, row.comparison.status)


def pending_samples(board: Board) -> Iterator[Sample]:
    """Yield the samples of each pending job; jobs of the same name are numbered."""
    seen: Counter[str] = Counter()
    for row in board.pending:
        name = label_text(row.job.label)
        seen[name] += 1
        labels = (name if seen[name] == 1 else f"{name} ({seen[name]})",)
        yield from _states(table.PENDING_VERDICT, labels, row.fit.verdict if row.fit else "unknown")
        yield table.PENDING_BUDGET, labels, row.budget.ranks.highest.device_bytes if row.budget else None
        yield table.PENDING_MARGIN, labels, row.fit.margin_bytes if row.fit else None


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
    for text in (facts.rendezvous, facts.master, facts.slurm_job, facts.pod_group, facts.ray_job):
        yield label_text(text)


def _process(row: ProcessRow, labels: Labels) -> Iterator[Sample]:
    yield table.PROCESS_START, labels, row.process.start_time
    yield table.PROCESS_USED, labels, row.process.used_bytes
    yield table.PROCESS_HAS_BUDGET, labels, int(row.budget is not None)
    yield from _budget(row, labels)
    comparison, counters = row.comparison, row.process.counters
    if comparison is not None:
        yield table.PROCESS_PEAK, labels, comparison.peak_usage.size_bytes if comparison.peak_usage else None
        yield table.PROCESS_DIVERGENCE, labels, comparison.difference_bytes
        yield from _states(table.PROCESS_STATUS, labels, comparison.status)
        if comparison.phase is not None:
            yield from _states(table.PROCESS_PHASE, labels, comparison.phase)
        if comparison.trend is not None:
            yield table.PROCESS_GROWTH, labels, comparison.trend.bytes_per_second
            if row.full_seconds is not None:
                yield table.PROCESS_FULL, labels, row.full_seconds
    if counters is not None:
        yield table.TORCH_ALLOCATED, labels, counters.allocated_bytes
        yield table.TORCH_RESERVED, labels, counters.reserved_bytes
        yield table.STEP_SECONDS, labels, counters.step_seconds
        yield table.STEPS, labels, counters.steps


def _budget(row: ProcessRow, labels: Labels) -> Iterator[Sample]:
    if row.budget is None:
        return
    peak = row.budget.peak
    yield table.PROCESS_BUDGET, labels, row.budget.steady_device_bytes
    yield table.PROCESS_LOW, labels, peak.low_bytes
    yield table.PROCESS_HIGH, labels, peak.shown_high_bytes
    for name, size in peak.components.items():
        yield table.PROCESS_COMPONENT, (*labels, name), size
    yield table.PROCESS_COMPONENT, (*labels, "slack"), max(0, peak.device_bytes - peak.components.total_bytes)


def _states(metric: table.Metric, labels: Labels, current: str) -> Iterator[Sample]:
    for state in metric.states:
        yield metric, (*labels, state), int(state == current)
