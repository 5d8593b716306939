"""One reading of this machine as JSON; unknown values are null."""

from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from vramtop.estimator.common import displayed
from vramtop.monitor.board import Board, GpuRow, Hidden, PendingRow, ProcessRow, RunRow
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot import MigDevice
from vramtop.monitor.snapshot.mig_devices import mig_devices

if TYPE_CHECKING:
    from ...json_types import (
        GpuJson,
        HiddenJson,
        MigDeviceJson,
        OnceJson,
        PendingJson,
        ProcessJson,
        RunJson,
    )


def board_json(board: Board) -> "OnceJson":
    """Return the board as ``--once --json`` prints it."""
    snapshot = board.snapshot
    return {
        "schema": 1,
        "time": datetime.fromtimestamp(snapshot.time, timezone.utc).isoformat(),
        "source": {
            "kind": snapshot.source.kind,
            "host": snapshot.source.host,
            "driver_version": snapshot.source.driver_version,
            "cuda_version": snapshot.source.cuda_version,
        },
        "faults": [asdict(fault) for fault in snapshot.faults],
        "filter": None if board.hidden is None else _filter_json(board.hidden),
        "gpus": [_gpu_json(row, board) for row in board.gpus if board.displays_gpu(row.reading)],
        "runs": [_run_json(run) for run in board.runs],
        "pending": [_pending_json(row) for row in board.pending],
        "oddities": [anomaly.to_json() for anomaly in board.anomalies],
    }


def _run_json(run: RunRow) -> "RunJson":
    peak = run.budget.peak if run.budget else None
    return {
        "job": displayed(run.job.label),
        "pids": [pid for pid, _ in run.pids],
        "gpus": sorted({row.gpu.index for row in run.rows}),
        "missing": list(run.missing),
        "budget_bytes": run.budget.steady_device_bytes if run.budget else None,
        "low_bytes": peak.low_bytes if peak else None,
        "high_bytes": peak.high_bytes if peak else None,
        "problem": run.problem and displayed(run.problem),
    }


def _pending_json(row: PendingRow) -> "PendingJson":
    sentence = row.fit.sentence if row.fit else row.problem
    return {
        "job": displayed(row.job.label),
        "verdict": row.fit.verdict if row.fit else "unknown",
        "device_bytes": row.budget.peak.device_bytes if row.budget else None,
        "sentence": sentence and displayed(sentence),
    }


def _filter_json(hidden: Hidden) -> "HiddenJson":
    return {
        "options": hidden.by,
        "hidden_gpus": list(hidden.labels),
        "hidden_processes": hidden.processes,
        "hidden_used_bytes": hidden.used_bytes,
    }


def _gpu_json(row: GpuRow, board: Board) -> "GpuJson":
    gpu = row.reading
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "total_bytes": gpu.total_bytes,
        "used_bytes": gpu.used_bytes,
        "reserved_bytes": gpu.reserved_bytes,
        "free_bytes": gpu.free_bytes,
        "unattributed_bytes": gpu.unattributed_bytes,
        "utilisation_percent": gpu.utilisation_percent,
        "memory_utilisation_percent": gpu.memory_utilisation_percent,
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "processes": None
        if gpu.processes is None
        else [_process_json(process) for process in row.rows if board.displays(process)],
        "mig": None if gpu.mig is None else [_mig_json(device) for device in mig_devices(gpu)],
        "faults": [asdict(fault) for fault in gpu.faults],
    }


def _mig_json(device: MigDevice) -> "MigDeviceJson":
    """Return a MIG device; devices of one GPU instance all have its memory, and all but one name its owner."""
    return {
        "label": device.label,
        "uuid": device.uuid,
        "profile": device.device.profile,
        "gpu_instance": device.device.gpu_instance,
        "compute_instance": device.device.compute_instance,
        "total_bytes": device.total_bytes,
        "used_bytes": device.used_bytes,
        "reserved_bytes": device.reserved_bytes,
        "free_bytes": device.free_bytes,
        "unattributed_bytes": None if device.shares_memory_of else device.unattributed_bytes,
        "shares_memory_of": device.shares_memory_of,
        "pids": None if device.processes is None else [process.pid for process in device.processes],
        "faults": [asdict(fault) for fault in device.faults],
    }


def _process_json(row: ProcessRow) -> "ProcessJson":
    process = row.process
    return {
        "pid": process.pid,
        "gpu_instance": process.gpu_instance,
        "compute_instance": process.compute_instance,
        "used_bytes": process.used_bytes,
        "user": process.user,
        "command": process.command,
        "kind": row.kind,
        "program": kind_label(row.kind, row.program_name),
        "elapsed_seconds": row.elapsed_seconds,
        "runs_in": process.runs_in,
        "note": process.note,
        "job": displayed(row.job.label) if row.job else None,
        "budget_bytes": row.budget.steady_device_bytes if row.budget else None,
        "status": row.comparison.status if row.comparison else None,
        "no_budget_reason": row.no_budget_reason,
    }
