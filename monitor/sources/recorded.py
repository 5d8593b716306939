"""A recording as a whole: memory over time of its GPUs and runs, what happened, and what was predicted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from ..board.process_groups import ProcessGroup, group_processes
from ..board.watchlist import Watchlist
from ..host.plain_text import duration_text
from .recording import TRUNCATED_CODE, read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.causes.divergence import Divergence
    from vramtop.estimator.job.job import Job

    from ..board.board import Board, ProcessRow
    from ..board.comparison import Comparison, Status
    from ..board.fit_result import FitResult
    from ..board.process_groups import GroupKey
    from ..snapshot.snapshot import GpuKey, GpuReading, HistoryKey, Snapshot, Source

# Events of a recording: runs that start, end, fail and diverge, GPUs that are lost, and gaps.


EventKind = Literal[
    "started", "ended", "out_of_memory", "diverged", "back_in_budget", "gpu_lost", "gpu_back", "gap", "cut"
]
MAX_EVENTS = 500
"""The first are kept; a recording with more has a run that starts and fails again and again."""
_BACK: EventKind = "back_in_budget"
_DIVERGING: Mapping[Status, str] = {"over": "OVER its budget", "under": "UNDER its budget", "growing": "GROWING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    time: float
    """Unix seconds; of a gap, its begin."""
    kind: EventKind
    sentence: str
    end: float | None = None
    """Unix seconds at which a gap ends."""
    gpus: tuple[str, ...] = ()
    """Labels of the GPUs that it concerns; empty: all."""
    run: GroupKey | None = None
    """The run that it concerns."""


class EventFinder:
    """Finds events by comparing each board with the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.left_out = 0
        """Events beyond ``MAX_EVENTS``."""
        self._gpus: dict[GpuKey, tuple[str, bool]] = {}
        """Label of each GPU, and whether it could be read last."""
        self._statuses: dict[HistoryKey, Status] = {}
        self._ended: set[GroupKey] = set()
        self._running: dict[GroupKey, ProcessGroup] = {}
        """The first group of each run."""
        self._begin: float | None = None
        """Unix seconds of the first board."""

    def add(self, event: Event) -> None:
        """Keep an event, as long as there are not too many."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.left_out += 1

    def observe(self, board: Board, groups: Sequence[ProcessGroup]) -> None:
        """Look at the next board and its groups of processes."""
        self._observe_gpus(board)
        if self._begin is None:
            self._begin = board.snapshot.time
        time = board.snapshot.time
        for group in groups:
            job = job_of(group)
            if job is not None and group.rows:
                self._observe_run(group, job.label, time, self._begin)
        self._observe_absent({group.key for group in groups}, time)

    def _observe_gpus(self, board: Board) -> None:
        time, present = board.snapshot.time, {gpu.reading.key: gpu.reading for gpu in board.gpus}
        for key, gpu in present.items():
            concerned = (gpu.label,)
            readable = gpu.used_bytes is not None and not gpu.is_stale
            known = self._gpus.get(key)
            if not readable and (known is None or known[1]):
                self.add(Event(time=time, kind="gpu_lost", sentence=_why_lost(gpu), gpus=concerned))
            elif readable and known is not None and not known[1]:
                self.add(
                    Event(time=time, kind="gpu_back", sentence=f"GPU {gpu.label} is read again", gpus=(gpu.label,))
                )
            elif readable and known is None and self._begin is not None:
                self.add(Event(time=time, kind="gpu_back", sentence=f"GPU {gpu.label} is there", gpus=concerned))
            self._gpus[key] = (gpu.label, readable)
        why = next((f": {fault.message}" for fault in board.snapshot.faults), "")
        for key, (label, readable) in self._gpus.items():
            if key not in present and readable:
                self.add(Event(time=time, kind="gpu_lost", sentence=f"GPU {label} is not there{why}", gpus=(label,)))
                self._gpus[key] = (label, False)

    def _observe_run(self, group: ProcessGroup, name: str, time: float, begin: float) -> None:
        if group.key not in self._running and group.key not in self._ended:
            starts = [row.process.start_time for row in group.rows if row.process.start_time is not None]
            start = min(starts, default=time)
            if start > begin:  # else it was running before
                self._add_of_run(group, start, "started", f"{name} started")
        self._running.setdefault(group.key, group)
        ended_at = group.run.ended_at if group.run else None
        for row in group.rows:
            self._observe_row(row, group, name, time, run_goes_on=ended_at is None)
        if ended_at is not None and group.key not in self._ended:
            self._ended.add(group.key)
            failed = [row for row in group.rows if row.comparison and row.comparison.status == "out_of_memory"]
            shown = next(iter(failed), next((row for row in group.rows if row.comparison), None))
            how = f": it {shown.comparison.sentence}" if shown and shown.comparison else ""
            self._add_of_run(group, ended_at, "out_of_memory" if failed else "ended", f"{name} ended{how}")

    def _observe_absent(self, present: Collection[GroupKey], time: float) -> None:
        """Find the end of runs without a budget: their processes are not followed, and are on no GPU any more."""
        readable = {key for key, (_, readable) in self._gpus.items() if readable}
        for key, group in list(self._running.items()):
            if key in self._ended or key in present or not {row.gpu.whole_gpu_key for row in group.rows} <= readable:
                continue
            self._ended.add(key)
            job = job_of(group)
            self._add_of_run(group, time, "ended", f"{job.label if job else 'a run'} has left its GPUs")

    def _add_of_run(self, group: ProcessGroup, time: float, kind: EventKind, sentence: str) -> None:
        gpus = tuple(dict.fromkeys(row.gpu.label for row in group.rows))
        self.add(Event(time=time, kind=kind, sentence=sentence, gpus=gpus, run=group.key))

    def _observe_row(self, row: ProcessRow, group: ProcessGroup, name: str, time: float, *, run_goes_on: bool) -> None:
        if row.comparison is None or row.comparison.status == "unknown":
            return
        now, before = row.comparison.status, self._statuses.get(row.key)
        self._statuses[row.key] = now
        if now == before:
            return
        who = name if len(group.ranks) == 1 else f"{name}, pid {row.process.pid} on GPU {row.gpu.label}"
        at, kind = time, _BACK
        if now in _DIVERGING:
            at, kind = row.comparison.left_budget_at or time, "diverged"
            sentence = f"{who} is {_DIVERGING[now]}: {row.comparison.sentence}"
        elif now == "out_of_memory" and run_goes_on:
            at, kind = row.ended_at or time, "out_of_memory"
            sentence = f"{who} {row.comparison.sentence}"
        elif before in _DIVERGING and now == "on_budget":
            sentence = f"{who} is within its budget again: {row.comparison.sentence}"
        else:
            return
        self.add(Event(time=at, kind=kind, sentence=sentence, gpus=(row.gpu.label,), run=group.key))


def job_of(group: ProcessGroup) -> Job | None:
    """Return the job of a group of processes; None: it is not known."""
    if group.run is not None:
        return group.run.job
    return next((row.job for row in group.rows if row.job is not None), None)


def gap_event(begin: float, end: float) -> Event:
    """Return the event of a time without readings."""
    return Event(
        time=begin, end=end, kind="gap", sentence=f"no reading for {duration_text(end - begin)}: this time is unknown"
    )


def _why_lost(gpu: GpuReading) -> str:
    why = gpu.reason("used_bytes")
    if gpu.is_stale:
        held = "" if gpu.used_bytes is None else f"; {format_gib(gpu.used_bytes)} GiB were in use at the last reading"
        return f"GPU {gpu.label} does not answer{held}"
    return f"GPU {gpu.label} cannot be read{f': {why}' if why else ''}"


# Memory over the whole time of a recording, in a bounded number of intervals; what was not read stays a gap.


CAPACITY = 800
"""Intervals kept of each series; a plot has fewer pixels than twice that."""


class Interval(NamedTuple):
    """Consecutive readings; of one reading both times and both sizes are the same."""

    begin: float
    """Unix seconds of the first reading."""
    end: float
    low_bytes: int
    high_bytes: int


Stretch = tuple[Interval, ...]
"""Intervals without a gap between them."""


class MemorySeries:
    """Highest and lowest memory of consecutive intervals; when there is no room for more, neighbours are merged.

    Two intervals with a gap between them are merged only if nothing else is left to be merged.

    Args:
        capacity: maximum number of intervals.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = max(2, capacity)
        self._stretches: list[list[Interval]] = []
        self._last_readings = 0
        """Readings in the last interval."""
        self._widest = 1
        """Readings in an interval before the next one begins."""

    def __bool__(self) -> bool:
        """Return True if there is a reading."""
        return bool(self._stretches)

    @property
    def begin(self) -> float | None:
        """Unix seconds of the first reading."""
        return self._stretches[0][0].begin if self._stretches else None

    @property
    def end(self) -> float | None:
        """Unix seconds of the last reading."""
        return self._stretches[-1][-1].end if self._stretches else None

    @property
    def high_bytes(self) -> int | None:
        """The highest reading."""
        return max((each.high_bytes for stretch in self._stretches for each in stretch), default=None)

    def add(self, time: float, size_bytes: int, *, before: float | None) -> None:
        """Add a reading.

        Args:
            time: Unix seconds, later than the last one.
            size_bytes: memory then.
            before: Unix seconds of the recording's reading before this one; None: a gap precedes this one. If the
                series has no reading of that time, nothing is known of its memory in between either.
        """
        new, after_gap = Interval(time, time, size_bytes, size_bytes), before is None or self.end != before
        if not after_gap and self._last_readings < self._widest:
            self._stretches[-1][-1] = _merged(self._stretches[-1][-1], new)
            self._last_readings += 1
            return
        if self._count >= self._capacity:
            self._stretches = [_halved(stretch) for stretch in self._stretches]
            self._widest *= 2
            if self._count > self._capacity * 3 // 4:  # hardly anything but gaps
                self._stretches = [
                    [*one[:-1], _merged(one[-1], other[0]), *other[1:]] if other else one
                    for one, other in zip_longest(self._stretches[::2], self._stretches[1::2])
                ]
        if after_gap:
            self._stretches.append([])
        self._stretches[-1].append(new)
        self._last_readings = 1

    def stretches(self) -> tuple[Stretch, ...]:
        """Return the intervals between the gaps, in order."""
        return tuple(map(tuple, self._stretches))

    @property
    def _count(self) -> int:
        return sum(map(len, self._stretches))


def _halved(stretch: list[Interval]) -> list[Interval]:
    pairs = zip_longest(stretch[::2], stretch[1::2])
    return [_merged(one, other) if other else one for one, other in pairs]


def _merged(one: Interval, other: Interval) -> Interval:
    low, high = min(one.low_bytes, other.low_bytes), max(one.high_bytes, other.high_bytes)
    return Interval(one.begin, other.end, low, high)


# Summary of a recording: its GPUs, its runs, and its events.


class RecordedGpu(msgspec.Struct, kw_only=True):
    """A GPU or MIG device."""

    label: str
    order: tuple[int, ...]
    name: str | None
    uuid: str | None
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
        peaks = [comparison.peak_usage for comparison in self._comparisons() if comparison.peak_usage]
        known = [size for size in (*sizes, *(peak.size_bytes for peak in peaks)) if size is not None]
        return max(known, default=None)

    @property
    def needs_attention(self) -> Comparison | None:
        """The comparison of its rank with the highest memory that diverged last; None: none did."""
        worst = [process.worst for process in self.processes if process.worst is not None]
        last = max(worst, key=lambda row: row.process.used_bytes or 0, default=None)
        return last.comparison if last else None

    def _comparisons(self) -> list[Comparison]:
        return [process.row.comparison for process in self.processes if process.row.comparison]


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


# Play a recording through the watchlist as fast as it can be read, and keep what a report shows.


_GAP_INTERVALS = 2.5
"""Readings that are this many usual intervals apart have a gap between them."""
_MIN_GAP_SECONDS = 1.0
"""Lateness that is no gap, whatever the interval."""
_INTERVALS_KEPT = 31
_MAX_PROCESSES = 2000
"""Processes whose memory is kept over time; beyond that the smallest without a job are dropped."""
_MAX_PROGRAMS = 40
"""Programs without a known job that are kept, the largest."""


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
        before = self._time if self._readings else None
        if before is not None and snapshot.time <= before:
            self._left_out += 1
            return
        if before is None:
            self._begin = snapshot.time
        elif self._is_gap(snapshot.time - before):
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
            faults=(*self._faults, *self._left_out_sentence()),
            pending=tuple(f"{row.job.label}: {row.problem or _verdict(row.fit)}" for row in pending),
        )

    def _left_out_sentence(self) -> tuple[str, ...]:
        if not self._left_out:
            return ()
        readings = "1 reading is" if self._left_out == 1 else f"{self._left_out:,} readings are"
        return (f"{readings} left out, not later than those before: the clock was set back",)

    def _usual_interval(self) -> float | None:
        intervals = sorted(self._intervals)
        return intervals[len(intervals) // 2] if intervals else None

    def _is_gap(self, seconds: float) -> bool:
        usual = self._usual_interval()
        return usual is not None and seconds > max(_GAP_INTERVALS * usual, usual + _MIN_GAP_SECONDS)

    def _add_gpus(self, board: Board, before: float | None) -> None:
        time = board.snapshot.time
        for row in board.displayed_gpus:
            reading = row.reading
            gpu = self._gpus.get(reading.key)
            if gpu is None:
                gpu = self._gpus[reading.key] = RecordedGpu(
                    label=reading.label, order=reading.order, name=reading.name, uuid=reading.uuid, total_bytes=None
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
            if group.key not in self._groups and job_of(group) is None and len(self._groups) > _MAX_PROCESSES:
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
        programs = [key for key, group in self._groups.items() if job_of(group) is None]
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
            key=group.key, processes=tuple(process for process in members if process is not None), job=job_of(group)
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
        worst = [process.worst for process in run.processes if process.worst is not None]
        row: ProcessRow | None = max(worst, key=lambda each: each.process.used_bytes or 0, default=None)
        if row is None or row.budget is None or row.comparison is None or run.missing:
            return None
        from ..board.diagnosis import diagnose

        return diagnose(row.budget, row.comparison, row.process, self._estimate)


def _verdict(fit: FitResult | None) -> str:
    return "cannot tell" if fit is None or fit.verdict == "unknown" else fit.verdict.replace("_", " ")
