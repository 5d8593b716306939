"""Rows of the board for GPUs, MIG devices and processes, and the memory that running jobs will yet allocate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..host.kinds import program_of
from ..host.plain_text import duration_text
from ..snapshot.mig_devices import mig_devices, processes_by_device
from .board import GpuRow, NoBudgetReason, ProcessRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..host.known_programs import KnownProgram
    from ..snapshot.snapshot import DeviceIndex, GpuProcess, GpuReading, Snapshot, WatchedJob

    NoBudgetReasonFunction = Callable[[GpuProcess, KnownProgram], NoBudgetReason | None]


def gpu_rows(
    snapshot: Snapshot, with_job: Callable[[ProcessRow], ProcessRow], reason: NoBudgetReasonFunction = lambda *_: None
) -> tuple[GpuRow, ...]:
    """Return one row per GPU of a snapshot.

    Args:
        snapshot: the machine now.
        with_job: adds the job of a process to its row, if it is known.
        reason: returns why a process has no budget, in a word or two, as long as it has none.
    """
    found = []
    for gpu in snapshot.gpus:
        devices = mig_devices(gpu)
        rows = tuple(
            with_job(_process_row(snapshot, device, process, reason))
            for device, process in processes_by_device(gpu, devices)
        )
        inside = [(device, {id(process) for process in device.processes or ()}) for device in devices]
        parts = (
            GpuRow(reading=device, rows=tuple(row for row in rows if id(row.process) in ids)) for device, ids in inside
        )
        found.append(GpuRow(reading=gpu, rows=rows, devices=tuple(parts)))
    return tuple(found)


def committed_bytes(gpus: Iterable[GpuRow]) -> dict[DeviceIndex, int]:
    """Return the bytes by device that running jobs will yet allocate: budget less memory, for jobs not yet steady."""
    committed: dict[DeviceIndex, int] = {}
    for gpu in gpus:
        for row in gpu.rows_with_budget:
            steady = row.comparison is not None and row.comparison.phase == "steady"
            if row.budget and row.process.used_bytes is not None and not steady:
                remaining = row.budget.steady_device_bytes - row.process.used_bytes
                device = row.process.device_index_on(gpu.reading.index)
                committed[device] = committed.get(device, 0) + max(0, remaining)
    return committed


def growth_by_device(gpus: Iterable[GpuRow]) -> dict[DeviceIndex, str]:
    """Return which process grows on a device and when it will be full, of the one that fills it first."""
    found: dict[DeviceIndex, tuple[float, str]] = {}
    for gpu in gpus:
        for row in gpu.rows:
            seconds = row.full_seconds
            if seconds is None or row.comparison is None or row.comparison.status != "growing":
                continue
            name = row.job.label if row.job and row.job.has_label else f"process {row.process.pid}"
            device = row.process.device_index_on(gpu.reading.index)
            sentence = f"{name} grows, GPU {gpu.reading.index} full in about {duration_text(seconds)}"
            found[device] = min(found.get(device, (seconds, sentence)), (seconds, sentence))
    return {device: sentence for device, (_, sentence) in found.items()}


def _process_row(
    snapshot: Snapshot, gpu: GpuReading, process: GpuProcess, reason: NoBudgetReasonFunction
) -> ProcessRow:
    elapsed = None if process.start_time is None else max(0.0, snapshot.time - process.start_time)
    program = program_of(process)
    return ProcessRow(
        gpu=gpu,
        process=process,
        elapsed_seconds=elapsed,
        is_live=snapshot.source.is_live,
        kind=program.kind,
        program_name=program.name,
        no_budget_reason=reason(process, program),
    )


def overlap(one: WatchedJob, other: WatchedJob) -> bool:
    """Return True if two runs have a process in common."""
    return not set(one.pids).isdisjoint(other.pids)
