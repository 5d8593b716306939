"""How the work of one reading grows with GPUs and processes: the watchlist, the table's rows and the lines on screen.

Without driver and terminal; processor time, the least of several rounds.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot, Source
from vramtop.tui.screens.dashboard.gpu_row_text import gpu_row_line
from vramtop.tui.screens.dashboard.process_rows import in_order, matching, table_rows

GPUS = (1, 2, 4, 8, 16)
PROCESSES_EACH = 32
"""16 GPUs have some 500 then."""
_READINGS = 20
_ROUNDS = 5
_GIB = 2**30
_WIDTH = 120
_IN_SIGHT = 15
_MOST = 1.25
"""So many times as long a process may take among most GPUs as among four: below that, what is fixed counts."""
_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One size of machine."""

    gpus: int
    processes: int
    milliseconds: float
    """Of processor time for one reading."""

    @property
    def microseconds_each(self) -> float:
        """For each process."""
        return self.milliseconds * 1000 / self.processes


def steps() -> Iterator[Step]:
    """All sizes."""
    for gpus in GPUS:
        least = min(_round(gpus) for _ in range(_ROUNDS))
        yield Step(gpus=gpus, processes=gpus * PROCESSES_EACH, milliseconds=least * 1000)


def is_linear(found: Sequence[Step]) -> bool:
    """Whether a process takes as long among many as among few."""
    few = next(step for step in found if step.gpus == _FEW)
    return found[-1].microseconds_each <= _MOST * few.microseconds_each


def table(found: Sequence[Step]) -> str:
    """A line for each size."""
    lines = [f"{'GPUs':>4}  {'processes':>9}  {'ms a reading':>12}  {'us a process':>12}"]
    lines += [f"{s.gpus:4}  {s.processes:9}  {s.milliseconds:12.2f}  {s.microseconds_each:12.1f}" for s in found]
    few, many = next(step for step in found if step.gpus == _FEW), found[-1]
    ratio = many.microseconds_each / few.microseconds_each
    verdict = "yes" if is_linear(found) else "NO"
    return "\n".join([*lines, f"a process among {many.gpus} GPUs takes {ratio:.2f} x as long as among {few.gpus} "
                              f"(at most {_MOST:g}): {verdict}"])  # fmt: skip


def _round(gpus: int) -> float:
    """Seconds of processor time for one reading, on average."""
    watchlist = Watchlist(_no_budget, anomaly_detector=AnomalyDetector(origin_of=lambda pid, started: None))
    snapshots = [_snapshot(gpus, tick) for tick in range(_READINGS + 1)]
    _draw(watchlist, snapshots[0])
    begun = time.process_time()
    for snapshot in snapshots[1:]:
        _draw(watchlist, snapshot)
    return (time.process_time() - begun) / _READINGS


def _draw(watchlist: Watchlist, snapshot: Snapshot) -> None:
    """What the dashboard does with a reading, but for putting it on the screen."""
    board = watchlist.update(snapshot)
    rows = in_order(matching(table_rows(board), ""), "STATUS")
    for row in rows[:_IN_SIGHT]:
        _ = row.cells
    for gpu in board.gpus:
        gpu_row_line(gpu, _WIDTH, selected=False)


def _no_budget(job: Job) -> Budget:
    return estimate(job)


def _snapshot(gpus: int, tick: int) -> Snapshot:
    """All processes hold other memory than a second ago."""
    return Snapshot(
        time=2_000.0 + tick,
        source=Source(kind="nvml", host="bench"),
        gpus=tuple(_reading(index, tick) for index in range(gpus)),
    )


def _reading(index: int, tick: int) -> GpuReading:
    first = 1_000 + index * PROCESSES_EACH
    processes = tuple(
        GpuProcess(
            pid=first + at,
            start_time=1_000.0,
            used_bytes=_GIB + (at * 7 + tick) % 11 * 2**20,
            kinds=("compute",),
            user="ana",
            name="python3",
            command=f"python3 train.py --rank={at}",
            parent=1,
            cpu_seconds=float(tick),
        )
        for at in range(PROCESSES_EACH)
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
