"""One reading of this machine as JSON; unknown values are null."""

from datetime import datetime, timezone
from typing import Any

import msgspec
from msgspec import to_builtins

from vramtop.estimator.common.secrets import displayed
from vramtop.monitor.board.board import Board, GpuRow, PendingRow, ProcessRow, RunRow
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot.mig_devices import MigDevice, mig_devices


def board_json(board: Board) -> dict[str, Any]:
    """Return the board as ``--once --json`` prints it."""
    snapshot, hidden = board.snapshot, board.hidden
    anomalies = to_builtins(board.anomalies)
    return {
        "schema": 1,
        "time": datetime.fromtimestamp(snapshot.time, timezone.utc).isoformat(),
        "source": _values(snapshot.source, "kind", "host", "driver_version", "cuda_version"),
        "faults": msgspec.to_builtins(snapshot.faults),
        "filter": hidden
        and {
            "options": hidden.by,
            "hidden_gpus": list(hidden.labels),
            "hidden_processes": hidden.processes,
            "hidden_used_bytes": hidden.used_bytes,
        },
        "gpus": [_gpu_json(row, board) for row in board.gpus if board.displays_gpu(row.reading)],
        "runs": [_run_json(run) for run in board.runs],
        "pending": [_pending_json(row) for row in board.pending],
        "anomalies": anomalies,
        "oddities": anomalies,
    }


def _run_json(run: RunRow) -> dict[str, Any]:
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


def _pending_json(row: PendingRow) -> dict[str, Any]:
    return {
        "job": displayed(row.job.label),
        "verdict": row.fit.verdict if row.fit else "unknown",
        "device_bytes": row.budget.peak.device_bytes if row.budget else None,
        "sentence": row.sentence and displayed(row.sentence),
    }


_SIZES = ("total_bytes", "used_bytes", "reserved_bytes", "free_bytes")
_FIGURES = ("utilisation_percent", "memory_utilisation_percent", "temperature_c", "power_w")


def _gpu_json(row: GpuRow, board: Board) -> Any:
    gpu = row.reading
    return {
        **_values(gpu, "index", "uuid", "name", *_SIZES, "unattributed_bytes", *_FIGURES),
        "processes": None
        if gpu.processes is None
        else [_process_json(process) for process in row.rows if board.displays(process)],
        "mig": None if gpu.mig is None else [_mig_json(device) for device in mig_devices(gpu)],
        "faults": msgspec.to_builtins(gpu.faults),
    }


def _mig_json(device: MigDevice) -> Any:
    """Return a MIG device; devices of one GPU instance all have its memory, and all but one name its owner."""
    return {
        **_values(device, "label", "uuid"),
        **_values(device.device, "profile", "gpu_instance", "compute_instance"),
        **_values(device, *_SIZES, "shares_memory_of"),
        "unattributed_bytes": None if device.shares_memory_of else device.unattributed_bytes,
        "pids": None if device.processes is None else [process.pid for process in device.processes],
        "faults": msgspec.to_builtins(device.faults),
    }


_PROCESS_FACTS = ("pid", "gpu_instance", "compute_instance", "used_bytes", "user", "command", "runs_in", "note")


def _process_json(row: ProcessRow) -> Any:
    return {
        **_values(row.process, *_PROCESS_FACTS),
        **_values(row, "kind", "elapsed_seconds", "no_budget_reason"),
        "program": kind_label(row.kind, row.program_name),
        "job": displayed(row.job.label) if row.job else None,
        "budget_bytes": row.budget.steady_device_bytes if row.budget else None,
        "status": row.comparison.status if row.comparison else None,
    }


def _values(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
