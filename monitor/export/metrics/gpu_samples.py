"""Samples of the GPUs and MIG devices of a board. A figure that the driver did not give has no sample."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...board.fit import unusable_reason
from ...snapshot import MigDevice
from . import metric_table as table
from .label_text import label_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...board import Board, GpuRow
    from ...snapshot import Fault, GpuReading
    from .samples import Sample


def gpu_samples(board: Board) -> Iterator[Sample]:
    """Yield the samples of all GPUs; of one on which the driver hangs only its faults and the time of its reading."""
    for row in board.gpus:
        reading = row.reading
        uuid, index = gpu_labels(reading)
        gpu = (uuid, index)
        yield table.GPU, (*gpu, label_text(reading.name)), 1
        if reading.read_at:
            yield table.GPU_READING, gpu, reading.read_at
        for figure, reason in sorted({_fault(fault) for fault in reading.faults}):
            yield table.GPU_FAULT, (*gpu, figure, reason), 1
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
        yield table.GPU_CLOSED, (*gpu, label_text(reason)), 1
    yield table.GPU_TOTAL, gpu, reading.total_bytes
    yield table.GPU_USED, gpu, reading.used_bytes
    yield table.GPU_FREE, gpu, reading.free_bytes
    yield table.GPU_RESERVED, gpu, reading.reserved_bytes
    yield table.GPU_UNATTRIBUTED, gpu, row.unattributed_bytes if reading.attributed_bytes is not None else None
    if reading.processes is not None:
        index = reading.index
        on_gpu = (size for at, size in board.committed.items() if (at if isinstance(at, int) else at[0]) == index)
        yield table.GPU_COMMITTED, gpu, sum(on_gpu)
    yield table.GPU_UTILISATION, gpu, None if utilisation is None else utilisation / 100
    yield table.GPU_TEMPERATURE, gpu, reading.temperature_c
    yield table.GPU_POWER, gpu, reading.power_w
    anomalous: Counter[str] = Counter()
    for anomaly in board.anomalies:
        if anomaly.gpu_index == reading.index:
            anomalous[anomaly.kind] += anomaly.held_bytes
    for kind, held in sorted(anomalous.items()):
        yield table.GPU_ANOMALOUS, (*gpu, kind), held


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
        yield table.GPU_PROCESSES, (*gpu, user), count
        yield table.GPU_USER_USED, (*gpu, user), sums[user]


def _mig_devices(board: Board, row: GpuRow, gpu: tuple[str, str]) -> Iterator[Sample]:
    for device in row.devices:
        reading = device.reading
        mig = (*gpu, reading.label)
        yield table.MIG_TOTAL, mig, reading.total_bytes
        yield table.MIG_USED, mig, reading.used_bytes
        yield table.MIG_FREE, mig, reading.free_bytes
        if isinstance(reading, MigDevice) and not reading.shares_memory_of:
            yield table.MIG_COMMITTED, mig, board.committed.get((reading.index, reading.device.gpu_instance), 0)
        attributed = reading.attributed_bytes is not None
        yield table.MIG_UNATTRIBUTED, mig, device.unattributed_bytes if attributed else None
