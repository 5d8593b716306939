"""Follows the processes of known jobs: through their phases, against their budgets, and beyond their end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.sizes import MIB, format_gib

from ..host.process_identity import is_running
from .board import GpuRow, ProcessRow, RunRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vramtop.estimator.budget.budget import Budget
    from vramtop.estimator.job.job import Job

    from ..snapshot.history import History
    from ..snapshot.snapshot import FinalCounters, GpuKey, HistoryKey, ProcessKey, Snapshot, WatchedJob
    from .divergence_status import Comparison, PeakUsage, Status
    from .run_phases import PhaseTracker

_NO_MEMORY = "OutOfMemoryError"
_RECENT_SECONDS = 30.0
"""A failed allocation and the end of its process belong together; other ranks may have to be waited for."""
_FULL = 0.02
"""Of a card: with less left than this, and than _FULL_BYTES, the next block may not be had."""
_FULL_BYTES = 512 * MIB


def start_time_of(pid: int) -> float | None:
    """Unix seconds when a process of this machine started; None: there is none, or it is hidden."""
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def count_kernel_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes the kernel has killed for want of host memory since it booted; None: it does not say."""
    try:
        lines = vmstat.read_bytes().splitlines()
    except OSError:
        return None
    counted = (line.split()[1] for line in lines if line.startswith(b"oom_kill "))
    found = next(counted, None)
    return None if found is None else int(found)


@dataclass(slots=True)
class _Followed:
    """A process on a GPU."""

    row: ProcessRow
    """As it was last there."""
    tracker: PhaseTracker
    gone_at: float | None = None
    """When it was first seen to be there no more."""
    killed: bool = False
    """The kernel killed something for want of host memory at that time."""


class RunTracker:
    """Remembers the processes of known jobs. Used under the lock of its watchlist.

    Args:
        history: of all processes; takes each snapshot in before the follower sees its rows.
        is_running: whether a process of this machine still runs.
        count_kernel_oom_kills: how many processes the kernel has killed for want of host memory.
    """

    def __init__(
        self,
        history: History,
        is_running: Callable[[ProcessKey], bool] = is_running,
        count_kernel_oom_kills: Callable[[], int | None] = count_kernel_oom_kills,
    ) -> None:
        self._history = history
        self._is_running = is_running
        self._count_kernel_oom_kills = count_kernel_oom_kills
        self._kills: int | None = None
        """At the last reading, while processes are followed."""
        self._killed = False
        """More were killed since the reading before."""
        self._followed: dict[HistoryKey, _Followed] = {}
        self._ended: dict[tuple[ProcessKey, ...], float] = {}
        """When runs were first seen to have ended, by their pids."""
        self._begun: float | None = None
        """Time of the first snapshot."""

    def record(self, snapshot: Snapshot) -> None:
        """Keep the snapshot's figures for later."""
        if self._begun is None:
            self._begun = snapshot.time
        self._history.add(snapshot, keep=self._followed.keys())

    def compare_process(self, row: ProcessRow, budget: Budget) -> ProcessRow:
        """The row of a process that runs a known job, held against its budget."""
        from .divergence_status import compare  # not before there is a run

        known = self._followed.get(row.key)
        tracker = known.tracker if known and known.tracker.budget is budget else self._tracker(row, budget)
        recent = self._history.process(row.key)
        time = recent[-1][0] if recent else row.gpu.read_at
        tracker.add(time, None if row.gpu.is_stale else row.process.used_bytes, row.process.counters)
        previous = known.row.comparison if known else None
        comparison = compare(
            tracker,
            recent,
            process=row.process,
            left_bytes=row.gpu.free_bytes,
            previous=previous.status if previous else None,
        )
        judged = replace(row, budget=budget, comparison=comparison, phase_starts=tracker.phase_starts)
        self._followed[row.key] = _Followed(judged, tracker)
        return judged

    def run_rows(
        self,
        snapshot: Snapshot,
        gpus: Sequence[GpuRow],
        watched: Iterable[WatchedJob],
        budget_of: Callable[[Job], Budget | str],
    ) -> tuple[RunRow, ...]:
        """The runs with all of their processes, those that have ended as well; what belongs to none is forgotten."""
        present = {row.key: row for gpu in gpus for row in gpu.rows}
        readable = {gpu.reading.key for gpu in gpus if gpu.reading.processes is not None}
        live = snapshot.source.kind == "nvml"
        for words in snapshot.last_words:
            self._hear(words)
        if live and self._followed:
            before, self._kills = self._kills, self._count_kernel_oom_kills()
            self._killed = None not in (before, self._kills) and self._kills != before
        found = tuple(self._run(each, snapshot, present, readable, budget_of, live=live) for each in watched)
        mine = {row.key for run in found for row in run.rows}
        self._followed = {key: followed for key, followed in self._followed.items() if key in mine}
        self._ended = {run.pids: run.ended_at for run in found if run.ended_at is not None}
        return found

    def _hear(self, words: FinalCounters) -> None:
        """What a process said at its end is known only when it is gone."""
        key = words.pid, words.start_time
        for followed in self._followed.values():
            if followed.row.process.key != key or followed.row.gpu.index != words.gpu:
                continue
            process = replace(followed.row.process, counters=words.counters)
            comparison = followed.row.comparison
            if comparison is not None:
                from .divergence_status import peak_usage

                high = peak_usage(followed.tracker.peak_bytes, (), process) or comparison.peak_usage
                comparison = replace(comparison, peak_usage=high)
            followed.row = replace(followed.row, process=process, comparison=comparison)

    def _run(
        self,
        watched: WatchedJob,
        snapshot: Snapshot,
        present: Mapping[HistoryKey, ProcessRow],
        readable: set[GpuKey],
        budget_of: Callable[[Job], Budget | str],
        *,
        live: bool,
    ) -> RunRow:
        order = {key: at for at, key in enumerate(watched.pids)}
        keys = {key for key in (*present, *self._followed) if key[1:] in order}
        found = (present.get(key) or self._absent(self._followed[key], snapshot, readable, live=live) for key in keys)
        rows = sorted(found, key=lambda row: (order[row.process.key], row.gpu.order))
        budget = budget_of(watched.job)
        return RunRow(
            job=watched.job,
            pids=watched.pids,
            rows=tuple(rows),
            budget=None if isinstance(budget, str) else budget,
            problem=budget if isinstance(budget, str) else None,
            ended_at=self._ended_at(watched, rows, snapshot, live=live),
        )

    def _ended_at(
        self, watched: WatchedJob, rows: Sequence[ProcessRow], snapshot: Snapshot, *, live: bool
    ) -> float | None:
        """When none of its processes is on a GPU any more nor, on this machine, runs."""
        ended = all(row.ended_at is not None for row in rows)
        if live:
            ended = ended and not any(self._is_running(key) for key in watched.pids)
        elif not rows:
            ended = False
        return self._ended.get(watched.pids, snapshot.time) if ended else None

    def _absent(self, followed: _Followed, snapshot: Snapshot, readable: set[GpuKey], *, live: bool) -> ProcessRow:
        """The row of a process that is on its GPU no more, or of a GPU that cannot be read."""
        row, last = followed.row, followed.row.comparison
        if last is None:
            return row
        if row.gpu.whole_gpu_key not in readable:
            unseen = replace(last, status="unknown", observed_bytes=None, trend=None, sentence="its GPU cannot be read")
            return replace(row, comparison=unseen)
        if followed.gone_at is None:
            followed.gone_at, followed.killed = snapshot.time, live and self._killed
        status, how = _end(followed, last)
        if live and self._is_running(row.process.key):
            status, how = "ended", f"holds no memory on GPU {row.gpu.label} any more, and still runs"
        sentence = f"{how}; {_held(last.peak_usage, followed.tracker.budget)}"
        ended = replace(last, status=status, observed_bytes=None, trend=None, sentence=sentence)
        return replace(row, comparison=ended, ended_at=followed.gone_at)

    def _tracker(self, row: ProcessRow, budget: Budget) -> PhaseTracker:
        """A tracker that knows what was seen of the process before this reading."""
        from .run_phases import PhaseTracker

        life = self._history.lifetime(row.key)
        from_start = bool(life) and self._begun is not None and life[0][0] > self._begun
        tracker = PhaseTracker(budget, start_time=row.process.start_time, from_start=from_start)
        for time, size in life[:-1]:
            tracker.add(time, size)
        return tracker


def _end(followed: _Followed, last: Comparison) -> tuple[Status, str]:
    """How a process ended: by its last words, else by its last figures; only its parent is told its exit code."""
    row, tracker, gone_at = followed.row, followed.tracker, followed.gone_at or 0.0
    said, free, total = row.process.counters, row.gpu.free_bytes, row.gpu.total_bytes
    if said and (said.error == _NO_MEMORY or gone_at - (said.out_of_memory_time or -math.inf) < _RECENT_SECONDS):
        return "out_of_memory", "has run out of memory, as torch itself says"
    if said and (said.ended is not None or said.error):
        return "ended", f"was ended by {said.error}" if said.error else "has come to its end"
    if followed.killed:
        return "out_of_memory", "has ended when the kernel killed a process for want of host memory: probably this one"
    if free is None or free >= max(_FULL_BYTES, round(_FULL * (total or 0))):
        return "ended", "was killed, or crashed" if said else "has ended"
    nearly = f"its GPU was nearly full then ({format_gib(free)} GiB free)"
    if tracker.phase == "steady" and last.status not in ("over", "growing"):
        return "ended", f"has ended; {nearly}"
    return "out_of_memory", f"has ended before it was steady, and {nearly}: it has probably run out of memory"


def _held(high: PeakUsage | None, budget: Budget) -> str:
    span = f"the budget says {format_gib(budget.peak.low_bytes)} to {format_gib(budget.peak.high_bytes)}"
    return (
        f"what it held is not known ({span})"
        if high is None
        else f"held at most {format_gib(high.size_bytes)} GiB; {span}"
    )
