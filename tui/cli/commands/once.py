"""``vramtop --once``: print the GPUs as they are now, as text or JSON."""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.secrets import displayed
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.board.board import Board, GpuRow, Hidden, PendingRow, ProcessRow, RunRow
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot.demand import CurrentDemand
from vramtop.monitor.snapshot.gpu_list import gpu_list
from vramtop.monitor.snapshot.mig_devices import MigDevice, mig_devices
from vramtop.monitor.snapshot.snapshot import Snapshot, WatchedJob
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ...draw.palette import STATUSES, VERDICTS, budget_size, unattributed_label
from ...draw.text_output import TextOutput, detect_output, format_table, truncate
from ...reports.anomaly_text import anomaly_lines
from ..crash_report import save_fault
from ..display_options import display_filter

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job

    from ..json_types.once import HiddenJson, OnceJson, PendingJson, RunJson

_ATTACH_SECONDS = 2.5
"""Time for reading the training processes; those that were not reached say so."""


def run(options: argparse.Namespace) -> int:
    """Print one reading; exit code 0."""
    board = _read(options)
    if options.json:
        import json

        print(json.dumps(board_json(board), indent=2))
    else:
        print("\n".join(board_lines(board, detect_output(ascii_only=options.ascii))))
    return 0


def _read(options: argparse.Namespace) -> Board:
    def quick(job: "Job") -> "Budget":
        # only if there is a job: importing it takes a fifth of the start-up time
        from vramtop.estimator.estimation import estimate

        from ..measured_runs import correction

        gpu = None if job.target.gpu else watchlist.gpu_type
        return correction(options, job, gpu, here=not job.target.gpu)(estimate(job, gpu=gpu))

    chosen = display_filter(options)
    watchlist = Watchlist(quick, anomaly_detector=AnomalyDetector(min_duration_seconds=0), display_filter=chosen)
    if options.job:
        from vramtop.estimator.job.job_file.load_and_save import load_job

        for path in options.job:
            watchlist.add_pending(load_job(Path(path)))
    source = NvmlSource(demand=CurrentDemand(always=chosen.figures) if chosen else None)
    source.open()
    try:
        snapshot = source.read()
    finally:
        source.close()
    if options.pid is not None:
        _watch(options, watchlist, snapshot)
    board = _board_with_runs(watchlist, snapshot, enabled=options.attach, corrects=options.history)
    if board.hidden and board.hidden.missing:
        present = gpu_list(gpu.index for gpu in snapshot.gpus)
        raise InputError(f"there is no GPU {', '.join(board.hidden.missing)} here, only {present}")
    return board


def _board_with_runs(watchlist: Watchlist, snapshot: Snapshot, *, enabled: bool, corrects: bool) -> Board:
    """Return the board of a snapshot with the runs that can be read in a few seconds."""
    attach = AutomaticAttach(watchlist, enabled=enabled, corrects=corrects, on_bug=save_fault)
    board = watchlist.update(snapshot)
    attach.observe(board)
    if not attach.finished.is_set():  # there is something to read
        attach.start()
        attach.finished.wait(_ATTACH_SECONDS)
        attach.close()
    return watchlist.rebuild_board() or board


def _watch(options: argparse.Namespace, watchlist: Watchlist, snapshot: Snapshot) -> None:
    from vramtop.estimator.estimation import estimate
    from vramtop.estimator.job.gpu_catalogue import match_nvml_name

    from ..measured_runs import corrected_run
    from .attach import largest_rank, read_job_of_run

    attachment, job, _ = read_job_of_run(options.pid, {}, snapshot)
    if job is None:
        return
    largest = largest_rank(attachment, snapshot)
    gpu_type = match_nvml_name(largest[0].name, largest[0].total_bytes) if largest and largest[0].name else None
    budget = estimate(job, gpu=None if job.target.gpu else gpu_type, environ=attachment.estimate_environ)
    watchlist.set_budget(corrected_run(options, budget, attachment, largest[0] if largest else None))
    ranks = tuple((rank.pid, rank.start_time) for rank in attachment.ranks)
    watchlist.add_run(WatchedJob(job=job, pids=ranks))


# One reading of this machine as JSON; unknown values are null.


def board_json(board: Board) -> "OnceJson":
    """Return the board as ``--once --json`` prints it."""
    snapshot = board.snapshot
    anomalies = to_builtins(board.anomalies)
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
        "anomalies": anomalies,
        "oddities": anomalies,
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


_SIZES = ("total_bytes", "used_bytes", "reserved_bytes", "free_bytes")
_FIGURES = ("utilisation_percent", "memory_utilisation_percent", "temperature_c", "power_w")
_PROCESS_FACTS = ("pid", "gpu_instance", "compute_instance", "used_bytes", "user", "command", "runs_in", "note")


def _gpu_json(row: GpuRow, board: Board) -> Any:
    gpu = row.reading
    return {
        **_values(gpu, "index", "uuid", "name", *_SIZES, "unattributed_bytes", *_FIGURES),
        "processes": None
        if gpu.processes is None
        else [_process_json(process) for process in row.rows if board.displays(process)],
        "mig": None if gpu.mig is None else [_mig_json(device) for device in mig_devices(gpu)],
        "faults": [asdict(fault) for fault in gpu.faults],
    }


def _mig_json(device: MigDevice) -> Any:
    """Return a MIG device; devices of one GPU instance all have its memory, and all but one name its owner."""
    return {
        **_values(device, "label", "uuid"),
        **_values(device.device, "profile", "gpu_instance", "compute_instance"),
        **_values(device, *_SIZES, "shares_memory_of"),
        "unattributed_bytes": None if device.shares_memory_of else device.unattributed_bytes,
        "pids": None if device.processes is None else [process.pid for process in device.processes],
        "faults": [asdict(fault) for fault in device.faults],
    }


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


# One reading of this machine as text: each figure with its label, so that screen readers can read it.


def board_lines(board: Board, output: TextOutput) -> Iterator[str]:
    """Yield the GPUs with their anomalies, the processes, the pending jobs, and what could not be read."""
    source = board.snapshot.source
    count = sum(bool(gpu.reading.column_label) for gpu in board.gpus)
    facts = [source.host or os.uname().nodename]
    facts += [f"driver {source.driver_version}"] if source.driver_version else []
    facts += [f"CUDA {source.cuda_version}"] if source.cuda_version else []
    yield output.text(", ".join([*facts, f"{count} GPU{'s' * (count != 1)}"]))
    yield from [output.text(board.sums)] if board.sums else []
    gpu_lines = iter(_aligned([_gpu_cells(row) for row in board.displayed_gpus], "<<>>>>>", output))
    for gpu in board.gpus:
        yield from islice(gpu_lines, sum(board.displays_gpu(each.reading) for each in (gpu, *gpu.devices)))
        if not board.displays_gpu(gpu.reading):
            continue
        yield from anomaly_lines([anomaly for anomaly in board.anomalies if anomaly.gpu == gpu.reading.index], output)
    yield ""
    yield from _process_lines(board, output)
    for row in board.pending:
        word = VERDICTS[row.fit.verdict if row.fit else "unknown"].word
        yield output.text(f"pending {row.job.label}: {word}: {row.fit.sentence if row.fit else row.problem or ''}")
    yield from (output.text(fault.message) for fault in board.snapshot.faults)
    for gpu in board.gpus:
        labels: dict[str, str] = {}
        for each in (gpu.reading, *(device.reading for device in gpu.devices)):
            for fault in each.faults:
                labels.setdefault(fault.message, each.label)
        of = "GPU " if gpu.reading.column_label else "host "
        yield from (output.text(f"{of}{label}: {message}") for message, label in labels.items())


def _process_lines(board: Board, output: TextOutput) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    for gpu in board.gpus:
        if not board.displays_gpu(gpu.reading):
            continue
        rows += [_process_cells(row) for row in gpu.rows if board.displays(row)]
        if board.hidden and (hidden := [row for row in gpu.rows if not board.displays(row)]):
            size = f"{format_gib(sum(row.process.used_bytes or 0 for row in hidden))} GiB"
            words = f"{len(hidden)} hidden by {board.hidden.by}"
            rows.append(("", "", f"GPU {gpu.reading.label}", size, "", "", words))
        for each in (gpu, *gpu.devices):
            if each.unattributed_bytes:
                where, size = f"GPU {each.reading.label}", f"{format_gib(each.unattributed_bytes)} GiB"
                rows.append(("", "", where, size, "", "", unattributed_label(each.reading)))
    for line in _aligned(rows, "<<<>><<", output):
        yield line if output.unlimited_width else truncate(line, output.width)


def _aligned(rows: Sequence[tuple[str, ...]], align: str, output: TextOutput) -> list[str]:
    """Return lines in which each figure has its label, for screen readers, and columns are aligned."""
    used = [place for place in range(len(align)) if any(row[place] for row in rows)]
    return format_table([[output.text(row[at]) for at in used] for row in rows], "".join(align[at] for at in used))


def _command(row: ProcessRow) -> str:
    """Return the command line of a process, after its note and what it is."""
    process, label = row.process, kind_label(row.kind, row.program_name)
    if row.gpu.host and row.job:  # another host's command line may be hidden, and its job is not attached to here
        label = row.job.label
    command = process.command or process.name
    line = f"({process.note}) {command}" if command and process.note else command or process.note or "n/a"
    return f"{label}: {line}" if label else line


def _gpu_cells(row: GpuRow) -> tuple[str, ...]:
    gpu = row.reading
    used, total, free = (format_gib(size) for size in (gpu.used_bytes, gpu.total_bytes, gpu.free_bytes))
    sizes = (f"{used} of {total} GiB in use", f"{free} free")
    if isinstance(gpu, MigDevice):
        name = f"MIG {gpu.device.profile or 'device'}"
        if gpu.shares_memory_of:
            return (f"GPU {gpu.label}", f"{name}, memory of {gpu.shares_memory_of}", "", "", "", "", "")
        return (f"GPU {gpu.label}", name, *sizes, "", "", "")
    if not gpu.column_label:
        return (f"host {gpu.label}", "no GPU, or no figures", "", "", "", "", "")
    util = "util n/a" if gpu.utilisation_percent is None else f"util {gpu.utilisation_percent} %"
    if gpu.host:  # nothing else is known of other hosts
        return (f"GPU {gpu.label}", gpu.name or "name n/a", *sizes, util, "", "")
    return (
        f"GPU {gpu.index}",
        gpu.name or "name n/a",
        *sizes,
        util,
        "W n/a" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        "C n/a" if gpu.temperature_c is None else f"{gpu.temperature_c} C",
    )


def _status(row: ProcessRow) -> str:
    """Return the status of a process, with the settings that are missing, or why it has no budget."""
    if row.comparison is None:
        return row.no_budget_reason or ""
    word = STATUSES[row.comparison.status].word
    return f"{word}: {', '.join(row.missing)}" if row.missing else word


def _process_cells(row: ProcessRow) -> tuple[str, ...]:
    process, status = row.process, row.comparison.status if row.comparison else None
    return (
        f"pid {process.pid}" if process.pid >= 0 else "",
        process.user or "user n/a",
        f"GPU {row.gpu.label}",
        "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes)} GiB",
        f"budget {budget_size(row.budget.steady_device_bytes, status)}" if row.budget else "",
        _status(row),
        _command(row),
    )
