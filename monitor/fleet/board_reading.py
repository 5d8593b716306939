"""Reading of this host, made from its board."""

from collections.abc import Callable

from vramtop.estimator.common.secrets import displayed

from ..board.board import Board, GpuRow, PendingRow, ProcessRow
from ..board.capacity import unusable_reason
from ..host.known_programs import kind_label
from ..host.plain_text import displayed_line
from ..snapshot.figures import ASLEEP, NOT_LISTED
from ..snapshot.mig_devices import MigDevice
from ..snapshot.snapshot import DeviceIndex, GpuReading, ProcessKey
from .fleet import SAME_NAMES, FleetGpu, FleetPending, FleetProcess, HostReading, RankFacts

_MEMORY_FIELDS = (None, "total_bytes", "used_bytes", "free_bytes", "processes")
"""A fault of one of these, or of the whole device, is passed on; many GPUs do not report their utilisation."""
_MAX_COMMAND_CHARACTERS = 200
"""Most characters of a command line that are sent; a table of many hosts never shows more."""


def reading_of_board(
    board: Board,
    *,
    host: str,
    facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None,
    interval: float | None = None,
    version: str | None = None,
) -> HostReading:
    """Return the reading of the host that a board is of: what is displayed on it, in plain values.

    Args:
        board: the board.
        host: name of the host.
        facts_of: returns what the environment of a process says of its run.
        interval: seconds between two boards.
        version: of this vramtop.
    """
    source = board.snapshot.source
    runs = {key: run.pids[0][0] for run in board.runs for key in run.pids}

    def gpu(row: GpuRow) -> FleetGpu:
        processes = None
        if row.reading.processes is not None:
            listed = (each for each in row.rows if board.displays(each))
            processes = tuple(_process(each, runs.get(each.process.key), facts_of(each.process.key)) for each in listed)
        return _figures(board, row, processes, tuple(_figures(board, device, None, ()) for device in row.devices))

    return HostReading(
        host=host,
        time=board.snapshot.time,
        gpus=tuple(map(gpu, (row for row in board.gpus if board.displays_gpu(row.reading)))),
        pending=tuple(_pending(row) for row in board.pending),
        anomalies=tuple(f"GPU {anomaly.gpu}: {displayed(anomaly.sentence)}" for anomaly in board.anomalies),
        faults=tuple(fault.message for fault in board.snapshot.faults),
        unlisted=tuple(fault.message for fault in board.snapshot.faults if fault.code == NOT_LISTED),
        driver_version=source.driver_version,
        vramtop_version=version,
        interval=interval,
    )


def _figures(
    board: Board, row: GpuRow, processes: tuple[FleetProcess, ...] | None, devices: tuple[FleetGpu, ...]
) -> FleetGpu:
    reading = row.reading
    return FleetGpu(
        **{name: getattr(reading, name) for name in SAME_NAMES},
        label=reading.label if isinstance(reading, MigDevice) else None,
        committed_bytes=_committed(board, reading, devices),
        unattributed_bytes=row.unattributed_bytes if reading.attributed_bytes is not None else None,
        is_stale=reading.is_stale,
        is_asleep=any(fault.field is None and fault.code == ASLEEP for fault in reading.faults),
        fault=next((fault.message for fault in reading.faults if fault.field in _MEMORY_FIELDS), None),
        is_lost=reading.loss is not None and reading.loss.code != "NO_PERMISSION" and not reading.is_stale,
        closed=None if isinstance(reading, MigDevice) else unusable_reason(reading),
        processes=processes,
        devices=devices,
    )


def _committed(board: Board, reading: GpuReading, devices: tuple[FleetGpu, ...]) -> int:
    """Return what jobs will yet allocate on a device; on a GPU in MIG mode, on all of its devices."""
    if isinstance(reading, MigDevice):
        index: DeviceIndex = (reading.index, reading.device.gpu_instance)
        return 0 if reading.shares_memory_of else board.committed.get(index, 0)
    return board.committed.get(reading.index, 0) + sum(device.committed_bytes or 0 for device in devices)


def _process(row: ProcessRow, run: int | None, facts: RankFacts | None) -> FleetProcess:
    process, comparison, budget, counters = row.process, row.comparison, row.budget, row.process.counters
    peak = comparison.peak_usage if comparison else None
    return FleetProcess(
        pid=process.pid,
        start_time=process.start_time,
        used_bytes=process.used_bytes,
        peak_bytes=peak.size_bytes if peak else process.peak_bytes,
        user=process.user,
        command=displayed_line(process.command or process.name, _MAX_COMMAND_CHARACTERS) or None,
        kind=kind_label(row.kind, row.program_name) or None,
        job=displayed(row.job.label) if row.job else None,
        budget_bytes=budget.steady_device_bytes if budget else None,
        low_bytes=budget.peak.low_bytes if budget else None,
        high_bytes=budget.peak.high_bytes if budget else None,
        status=comparison.status if comparison else None,
        sentence=displayed(comparison.sentence) if comparison else None,
        full_seconds=row.full_seconds,
        note=process.note or row.no_budget_reason or (displayed(row.problem) if row.problem else None),
        missing=row.missing,
        steps=counters.steps if counters else None,
        step_seconds=counters.step_seconds if counters else None,
        steps_at=counters.time if counters and counters.steps is not None else None,
        device=row.gpu.label if isinstance(row.gpu, MigDevice) else None,
        run=run,
        facts=facts,
    )


def _pending(row: PendingRow) -> FleetPending:
    return FleetPending(
        job=displayed(row.job.label),
        verdict=row.fit.verdict if row.fit else "unknown",
        device_bytes=row.budget.peak.device_bytes if row.budget else None,
        sentence=displayed(row.sentence) if row.sentence else None,
    )
