"""Processor time of one refresh (watchlist, table rows, GPU lines) against the number of GPUs and processes.

Needs no driver and no terminal. Each figure is the minimum of several rounds.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramtop.estimator.estimation import estimate
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot, Source
from vramtop.tui.screens.dashboard.gpu_rows import gpu_row_line
from vramtop.tui.screens.dashboard.table_view import TableView

GPU_COUNTS = (1, 2, 4, 8, 16)
PROCESSES_PER_GPU = 32
"""About 500 processes on 16 GPUs."""
_REFRESHES = 20
_ROUNDS = 5
_GIB = 2**30
_WIDTH = 120
_VISIBLE_ROWS = 15
_MAX_RATIO = 1.25
"""Limit on the time per process with the most GPUs relative to four GPUs; with fewer, fixed costs dominate."""
_BASE_GPUS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """A machine of this size and the processor time of a refresh on it."""

    gpus: int
    processes: int
    milliseconds: float
    """Processor time of one refresh."""

    @property
    def microseconds_per_process(self) -> float:
        """Processor time of one refresh, divided by the number of processes."""
        return self.milliseconds * 1000 / self.processes


def measure_sizes() -> Iterator[MachineSize]:
    """Measure each machine size."""
    for gpus in GPU_COUNTS:
        fastest = min(_seconds_per_refresh(gpus) for _ in range(_ROUNDS))
        yield MachineSize(gpus=gpus, processes=gpus * PROCESSES_PER_GPU, milliseconds=fastest * 1000)


def is_linear(sizes: Sequence[MachineSize]) -> bool:
    """Return True if the time per process on the largest machine is within the limit, so that the total is linear."""
    base = next(size for size in sizes if size.gpus == _BASE_GPUS)
    return sizes[-1].microseconds_per_process <= _MAX_RATIO * base.microseconds_per_process


def table(sizes: Sequence[MachineSize]) -> str:
    """Return one line per machine size, and the ratio with its verdict."""
    lines = [f"{'GPUs':>4}  {'processes':>9}  {'ms/refresh':>12}  {'us/process':>12}"]
    lines += [f"{s.gpus:4}  {s.processes:9}  {s.milliseconds:12.2f}  {s.microseconds_per_process:12.1f}" for s in sizes]
    base, largest = next(size for size in sizes if size.gpus == _BASE_GPUS), sizes[-1]
    ratio = largest.microseconds_per_process / base.microseconds_per_process
    verdict = "yes" if is_linear(sizes) else "NO"
    return "\n".join([*lines, f"time per process with {largest.gpus} GPUs: {ratio:.2f} x that with {base.gpus} "
                              f"(at most {_MAX_RATIO:g}): {verdict}"])  # fmt: skip


def _seconds_per_refresh(gpus: int) -> float:
    """Return the mean processor time of one refresh."""
    watchlist = Watchlist(estimate, anomaly_detector=AnomalyDetector(origin_of=lambda pid, started: None))
    snapshots = [_snapshot(gpus, tick) for tick in range(_REFRESHES + 1)]
    view = TableView()
    _refresh(watchlist, view, snapshots[0])
    started = time.process_time()
    for snapshot in snapshots[1:]:
        _refresh(watchlist, view, snapshot)
    return (time.process_time() - started) / _REFRESHES


def _refresh(watchlist: Watchlist, view: TableView, snapshot: Snapshot) -> None:
    """Do what the dashboard does with a snapshot, without drawing it."""
    board = watchlist.update(snapshot)
    view.show_board(board)
    rows = view.rows(words="", by="STATUS")
    for row in rows[:_VISIBLE_ROWS]:
        _ = row.cells
    for gpu in board.gpus:
        gpu_row_line(gpu, _WIDTH, selected=False)


def _snapshot(gpus: int, tick: int) -> Snapshot:
    """Return the snapshot of a second; every process holds a different amount of memory than a second before."""
    return Snapshot(
        time=2_000.0 + tick,
        source=Source(kind="nvml", host="bench"),
        gpus=tuple(_reading(index, tick) for index in range(gpus)),
    )


def _reading(index: int, tick: int) -> GpuReading:
    first_pid = 1_000 + index * PROCESSES_PER_GPU
    processes = tuple(
        GpuProcess(
            pid=first_pid + at,
            start_time=1_000.0,
            used_bytes=_GIB + (at * 7 + tick) % 11 * 2**20,
            kinds=("compute",),
            user="ana",
            name="python3",
            command=f"python3 train.py --rank={at}",
            parent=1,
            cpu_seconds=float(tick),
        )
        for at in range(PROCESSES_PER_GPU)
    )
    used = sum(process.used_bytes or 0 for process in processes)
    return GpuReading(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H100 80GB HBM3",
        total_bytes=80 * _GIB,
        used_bytes=used,
        free_bytes=80 * _GIB - used,
        reserved_bytes=0,
        utilisation_percent=(50 + tick) % 100,
        processes=processes,
        read_at=2_000.0 + tick,
    )
