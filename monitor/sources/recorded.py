"""A recording as a whole: memory over time of its GPUs and runs, what happened, and what was predicted."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace

from ..board.process_groups import GroupKey, ProcessGroup, group_processes
from ..board.watchlist import Watchlist
from .memory_series import MemorySeries
from .recorded_events import Event, EventFinder, gap_event
from .recording import TRUNCATED_CODE, read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.causes.divergence import Divergence
    from vramtop.estimator.job.job import Job

    from ..board.board import Board, ProcessRow
    from ..board.comparison import Comparison
    from ..board.fit_result import FitResult
    from ..snapshot.snapshot import GpuKey, HistoryKey, Snapshot, Source


def read_recorded(path: Path, estimate: Callable[[Job], Budget]) -> Recorded:
    """Return what a recording tells.

    Args:
        path: the recording.
        estimate: a quick estimate of a job; may raise VramtopError.

    Raises:
        InputError: the file is no recording that can be read.
    """
    collector = _Collector(path, estimate)
    for snapshot in read_recording(path):
        collector.add(snapshot)
    return collector.result()


class RecordedGpu(msgspec.Struct, kw_only=True):
    """A GPU or MIG device."""

    label: str
    order: tuple[int, ...]
    name: str | None
    total_bytes: int | None
    used: MemorySeries = msgspec.field(default_factory=MemorySeries)
    """Memory in use, the driver's own left out where it is known."""
    expected: MemorySeries = msgspec.field(default_factory=MemorySeries)
    """Memory of its known jobs in their steady state, as their budgets predict it."""
    unknown_reason: str | None = None
    """Why its memory was not known at some time."""


class RecordedProcess(msgspec.Struct, kw_only=True):
    """A process on one GPU."""

    row: ProcessRow
    """Its last row."""
    used: MemorySeries = msgspec.field(default_factory=MemorySeries)
    worst: ProcessRow | None = None
    """Its last row with a status that needed attention."""


class RecordedRun(msgspec.Struct, kw_only=True):
    """A run, or the processes of one program whose job is not known."""

    key: GroupKey
    processes: tuple[RecordedProcess, ...]
    """By rank."""
    job: Job | None = None
    budget: Budget | None = None
    problem: str | None = None
    """Why the known job has no budget."""
    missing: tuple[str, ...] = ()
    """Job keys that the budget guesses."""
    ended_at: float | None = None
    divergence: Divergence | None = None
    """What would explain the difference between its rank with the highest memory and its budget."""

    @property
    def highest(self) -> RecordedProcess | None:
        """The process that held the most on its GPU."""
        known = (process for process in self.processes if process.used)
        return max(known, key=lambda process: process.used.high_bytes or 0, default=None)

    @property
    def peak_bytes(self) -> int | None:
        """The most that one of its processes held: seen, or known to torch's counters or the driver's accounting."""
        sizes = [process.used.high_bytes for process in self.processes]
        comparisons = (process.row.comparison for process in self.processes)
        peaks = [each.peak_usage for each in comparisons if each and each.peak_usage]
        known = [size for size in (*sizes, *(peak.size_bytes for peak in peaks)) if size is not None]
        return max(known, default=None)

    @property
    def worst(self) -> ProcessRow | None:
        """The rank with the highest memory of those that diverged, as it was last; None: none did."""
        rows = [process.worst for process in self.processes if process.worst is not None]
        return max(rows, key=lambda row: row.process.used_bytes or 0, default=None)

    @property
    def needs_attention(self) -> Comparison | None:
        """The comparison of that rank; None: none diverged."""
        return self.worst.comparison if self.worst else None


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The file and where it comes from."""

    name: str
    """Name of the file."""
    source: Source
    begin: float
    """Unix seconds of the first reading."""
    end: float
    readings: int
    interval_seconds: float | None
    """The usual time between two readings; None: there is only one."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """All that a report shows of a recording."""

    recording: Recording
    gpus: tuple[RecordedGpu, ...]
    runs: tuple[RecordedRun, ...]
    """Runs with a known job first, in the order in which they were seen; then programs, the largest first."""
    events: tuple[Event, ...]
    """By time."""
    events_left_out: int
    faults: tuple[str, ...]
    """Faults of the machine as a whole, each once."""
    pending: tuple[str, ...]
    """Labels of the jobs that were pending at the end, each with its verdict there."""


_GAP_INTERVALS = 2.5
"""Readings that are this many usual intervals apart have a gap between them."""
_MIN_GAP_SECONDS = 1.0
"""Lateness that is no gap, whatever the interval."""
_INTERVALS_KEPT = 31
_MAX_PROCESSES = 2000
"""Processes whose memory is kept over time; beyond that the smallest without a job are dropped."""
_MAX_PROGRAMS = 40
"""Programs without a known job that are kept, the largest."""


class _Collector:
    """Receives the snapshots one by one."""

    def __init__(self, path: Path, estimate: Callable[[Job], Budget]) -> None:
        self._path = path
        self._estimate = estimate
        self._watchlist = Watchlist(estimate, is_running=lambda _: False)
        self._finder = EventFinder()
        self._gpus: dict[GpuKey, RecordedGpu] = {}
        self._processes: dict[HistoryKey, RecordedProcess] = {}
        self._groups: dict[GroupKey, ProcessGroup] = {}
        """The last group of each run or program."""
        self._members: dict[GroupKey, dict[HistoryKey, None]] = {}
        self._intervals: deque[float] = deque(maxlen=_INTERVALS_KEPT)
        self._faults: dict[str, None] = {}
        self._board: Board | None = None
        self._begin = self._time = 0.0
        self._readings = self._left_out = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add the next snapshot; one that is not later than the one before is left out."""
        before, usual = self._time if self._readings else None, self._usual_interval()
        if before is not None and snapshot.time <= before:
            self._left_out += 1
            return
        if before is None:
            self._begin = snapshot.time
        elif usual is not None and snapshot.time - before > max(_GAP_INTERVALS * usual, usual + _MIN_GAP_SECONDS):
            self._finder.add(gap_event(before, snapshot.time))
            before = None
        else:
            self._intervals.append(snapshot.time - before)
        self._time, self._readings = snapshot.time, self._readings + 1
        source = replace(snapshot.source, kind="recording", path=None)
        board = self._board = self._watchlist.update(replace(snapshot, source=source))
        for fault in snapshot.faults:
            if fault.code == TRUNCATED_CODE:
                self._finder.add(Event(time=snapshot.time, kind="cut", sentence=fault.message))
            elif len(self._faults) < _MAX_PROGRAMS:
                self._faults[fault.message] = None
        self._add_gpus(board, before)
        groups = group_processes(board)
        self._add_processes(board, groups, before)
        self._finder.observe(board, groups)

    def result(self) -> Recorded:
        """Return the readings that were kept."""
        interval = self._usual_interval()
        last = self._board
        pending = last.pending if last else ()
        faults = list(self._faults)
        if self._left_out:
            readings = "1 reading is" if self._left_out == 1 else f"{self._left_out:,} readings are"
            faults.append(f"{readings} left out, not later than those before: the clock was set back")
        return Recorded(
            recording=Recording(
                name=self._path.name,
                source=last.snapshot.source if last else None,  # type: ignore[arg-type]  # there is always one
                begin=self._begin,
                end=self._time,
                readings=self._readings,
                interval_seconds=interval,
            ),
            gpus=tuple(sorted(self._gpus.values(), key=lambda gpu: gpu.order)),
            runs=tuple(self._runs()),
            events=tuple(sorted(self._finder.events, key=lambda event: event.time)),
            events_left_out=self._finder.left_out,
            faults=tuple(faults),
            pending=tuple(f"{row.job.label}: {row.problem or _verdict(row.fit)}" for row in pending),
        )

    def _usual_interval(self) -> float | None:
        intervals = sorted(self._intervals)
        return intervals[len(intervals) // 2] if intervals else None

    def _add_gpus(self, board: Board, before: float | None) -> None:
        time = board.snapshot.time
        for row in board.displayed_gpus:
            reading = row.reading
            gpu = self._gpus.get(reading.key)
            if gpu is None:
                gpu = self._gpus[reading.key] = RecordedGpu(
                    label=reading.label, order=reading.order, name=reading.name, total_bytes=None
                )
            gpu.total_bytes = gpu.total_bytes or reading.total_bytes
            if reading.used_bytes is None or reading.is_stale:
                gpu.unknown_reason = reading.reason("used_bytes") or gpu.unknown_reason
            else:
                gpu.used.add(time, reading.used_bytes, before=before)
            expected = row.expected_bytes
            if expected is not None:
                gpu.expected.add(time, expected, before=before)

    def _add_processes(self, board: Board, groups: Sequence[ProcessGroup], before: float | None) -> None:
        for group in groups:
            if group.key not in self._groups and group.job is None and len(self._groups) > _MAX_PROCESSES:
                self._forget_small()
            self._groups[group.key] = group
            members = self._members.setdefault(group.key, {})
            for row in group.rows:
                members[row.key] = None
                process = self._processes.get(row.key)
                if process is None:
                    process = self._processes[row.key] = RecordedProcess(row=row)
                process.row = row
                if row.comparison and row.comparison.diverges:
                    process.worst = row
                if row.ended_at is None and not row.gpu.is_stale and row.process.used_bytes is not None:
                    process.used.add(board.snapshot.time, row.process.used_bytes, before=before)

    def _forget_small(self) -> None:
        """Drop the programs without a job that held the least."""
        programs = [key for key, group in self._groups.items() if group.job is None]
        programs.sort(key=self._peak_of, reverse=True)
        for key in programs[_MAX_PROCESSES // 4 :]:
            del self._groups[key]
            for member in self._members.pop(key):
                self._processes.pop(member, None)

    def _peak_of(self, key: GroupKey) -> int:
        known = (self._processes[member].used.high_bytes for member in self._members[key] if member in self._processes)
        return max((size for size in known if size is not None), default=0)

    def _runs(self) -> list[RecordedRun]:
        found = [self._run(group) for group in self._groups.values()]
        runs = [run for run in found if run.job is not None]
        taken = {process.row.key for run in runs for process in run.processes}
        programs = [
            run for run in found if run.job is None and not any(process.row.key in taken for process in run.processes)
        ]
        programs.sort(key=lambda run: run.peak_bytes or 0, reverse=True)
        return [*runs, *programs[:_MAX_PROGRAMS]]

    def _run(self, group: ProcessGroup) -> RecordedRun:
        members = (self._processes.get(key) for key in self._members[group.key])
        found = RecordedRun(
            key=group.key, processes=tuple(process for process in members if process is not None), job=group.job
        )
        if group.run is not None:
            found.ended_at = group.run.ended_at
            found.budget, found.problem, found.missing = group.run.budget, group.run.problem, group.run.missing
        highest = found.highest
        if highest is not None:  # on its GPU; a server's budget depends on that, and a rank's on its pipeline stage
            found.budget = highest.row.budget or found.budget
            found.problem = found.problem or highest.row.problem
        found.divergence = self._divergence(found)
        return found

    def _divergence(self, run: RecordedRun) -> Divergence | None:
        """Return what would explain that a run diverged; None: it did not, or its budget is a guess."""
        row = run.worst
        if row is None or row.budget is None or row.comparison is None or run.missing:
            return None
        from ..board.diagnosis import diagnose

        return diagnose(row.budget, row.comparison, row.process, self._estimate)


def _verdict(fit: FitResult | None) -> str:
    return "cannot tell" if fit is None or fit.verdict == "unknown" else fit.verdict.replace("_", " ")
