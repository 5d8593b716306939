"""Processes remembered from snapshot to snapshot: compared with budgets, or watched for growth; and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import MIB, format_gib

from ..host.process_stat import is_running
from ..snapshot.memory_history import MemoryHistory, usual_interval
from ..snapshot.snapshot import HistoryKey, ProcessKey, Snapshot
from .board import GpuRow, ProcessRow, RunRow
from .endings import count_kernel_oom_kills, peak_sentence, process_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.estimator.budget import Budget

    from ..snapshot.snapshot import FinalCounters, GpuKey, WatchedJob
    from .run_phases import PhaseTracker


class RunTracker(msgspec.Struct, eq=False):
    """Remembers the processes of known jobs. Not safe for concurrent use.

    Args:
        history: memory of all processes; each snapshot is added before its rows are compared.
        is_running: returns True if a process of this machine still runs.
        count_kernel_oom_kills: returns how many processes the kernel has killed because host memory ran out.
    """

    history: MemoryHistory
    is_running: Callable[[ProcessKey], bool] = is_running
    count_kernel_oom_kills: Callable[[], int | None] = count_kernel_oom_kills
    _kernel_kills: int | None = None
    """Count at the last reading, while processes are tracked."""
    _kernel_killed: bool = False
    """True if the count rose since the reading before."""
    _tracked: dict[HistoryKey, _TrackedProcess] = {}
    _run_ends: dict[tuple[ProcessKey, ...], float] = {}
    """Unix seconds at which runs were first seen to have ended, by their processes."""
    _first_time: float | None = None
    """Time of the first snapshot."""

    def record(self, snapshot: Snapshot) -> None:
        """Add a snapshot to the history."""
        if self._first_time is None:
            self._first_time = snapshot.time
        self.history.add(snapshot, keep=self._tracked.keys())

    def compare_process(self, row: ProcessRow, budget: Budget) -> ProcessRow:
        """Return the row of a process of a known job, compared with its budget."""
        from .comparison import as_far_as_known, compare_with_budget, compare_without_budget

        known = self._tracked.get(row.key)
        phases = known.phases if known and known.phases.budget is budget else self._new_phases(row, budget)
        recent = self.history.process(row.key)
        time = recent[-1][0] if recent else row.gpu.read_at
        phases.add(time, None if row.gpu.is_stale else row.process.used_bytes, row.process.counters)
        previous = known.row.comparison.status if known and known.row.comparison else None
        left = row.gpu.free_bytes
        comparison = compare_with_budget(phases, recent, process=row.process, left_bytes=left, previous=previous)
        comparison = as_far_as_known(comparison, budget, row.missing)
        rises = phases.phase in ("warming_up", "steady") and time - phases.rose[0] < _RECENT_SECONDS
        if comparison.is_guess and rises:
            growing = compare_without_budget(recent, left_bytes=left, previous=previous)
            if growing is not None:
                comparison = replace(comparison, status="growing", sentence=growing.sentence, trend=growing.trend)
        row = replace(row, budget=budget, comparison=comparison, phase_starts=phases.phase_starts)
        self._tracked[row.key] = _TrackedProcess(row, phases)
        return row

    def run_rows(
        self, snapshot: Snapshot, gpus: Sequence[GpuRow], runs: Iterable[tuple[WatchedJob, Budget | str]]
    ) -> tuple[RunRow, ...]:
        """Return the runs with all of their processes, including ended ones; other processes are forgotten.

        Args:
            snapshot: the machine now.
            gpus: its rows, with the compared processes.
            runs: known runs, each with its budget or the reason that there is none.
        """
        present = {row.key: row for gpu in gpus for row in gpu.rows}
        places: dict[ProcessKey, list[HistoryKey]] = {}
        for key in {**present, **self._tracked} if runs else ():
            places.setdefault(key[1:], []).append(key)
        reading = _Reading(
            time=snapshot.time,
            live=snapshot.source.is_live,
            present=present,
            places=places,
            readable={gpu.reading.key for gpu in gpus if gpu.reading.processes is not None},
        )
        for final in snapshot.last_words:
            self._add_final_counters(final)
        if reading.live and self._tracked:
            before, self._kernel_kills = self._kernel_kills, self.count_kernel_oom_kills()
            self._kernel_killed = None not in (before, self._kernel_kills) and self._kernel_kills != before
        rows = tuple(self._run_row(run, budget, reading) for run, budget in runs)
        known = {row.key for run in rows for row in run.rows}
        self._tracked = {key: tracked for key, tracked in self._tracked.items() if key in known}
        self._run_ends = {run.pids: run.ended_at for run in rows if run.ended_at is not None}
        return rows

    def _add_final_counters(self, final: FinalCounters) -> None:
        """Add the last counters of a process, which are read only after it has left the GPU."""
        for tracked in self._tracked.values():
            row = tracked.row
            if row.process.key != (final.pid, final.start_time) or row.gpu.index != final.gpu:
                continue
            process, comparison = replace(row.process, counters=final.counters), row.comparison
            if comparison is not None:
                from .comparison import peak_usage

                peak = peak_usage(tracked.phases.peak_bytes, (), process) or comparison.peak_usage
                comparison = replace(comparison, peak_usage=peak)
            tracked.row = replace(row, process=process, comparison=comparison)

    def _run_row(self, run: WatchedJob, budget: Budget | str, reading: _Reading) -> RunRow:
        rank_of = {key: rank for rank, key in enumerate(run.pids)}
        keys = [key for process in rank_of for key in reading.places.get(process, ())]
        found = (reading.present.get(key) or self._absent_row(self._tracked[key], reading) for key in keys)
        rows = sorted(found, key=lambda row: (rank_of[row.process.key], row.gpu.order))
        return RunRow(
            job=run.job,
            pids=run.pids,
            rows=tuple(rows),
            budget=None if isinstance(budget, str) else budget,
            problem=budget if isinstance(budget, str) else None,
            missing=run.missing,
            ended_at=self._run_end(run, rows, reading),
        )

    def _run_end(self, run: WatchedJob, rows: Sequence[ProcessRow], reading: _Reading) -> float | None:
        """Return when all processes of a run had left the GPUs and, on this machine, had ended; None: not yet."""
        ended = all(row.ended_at is not None for row in rows)
        if reading.live:
            ended = ended and not any(self.is_running(key) for key in run.pids)
        elif not rows:
            ended = False
        return self._run_ends.get(run.pids, reading.time) if ended else None

    def _absent_row(self, tracked: _TrackedProcess, reading: _Reading) -> ProcessRow:
        """Return the row of a process that is no longer on its GPU, or whose GPU cannot be read."""
        row, last = tracked.row, tracked.row.comparison
        if last is None:
            return row
        last = replace(last, observed_bytes=None, trend=None)
        if row.gpu.whole_gpu_key not in reading.readable:
            return replace(row, comparison=replace(last, status="unknown", sentence="its GPU cannot be read"))
        if tracked.ended_at is None:
            tracked.ended_at, tracked.kernel_killed = reading.time, reading.live and self._kernel_killed
        status, how = process_end(
            last.status,
            tracked.phases.phase,
            row.process.counters,
            row.gpu,
            ended_at=tracked.ended_at,
            kernel_killed=tracked.kernel_killed,
            still_runs=reading.live and self.is_running(row.process.key),
        )
        sentence = f"{how}; {peak_sentence(last.peak_usage, tracked.phases.budget)}"
        return replace(row, comparison=replace(last, status=status, sentence=sentence), ended_at=tracked.ended_at)

    def _new_phases(self, row: ProcessRow, budget: Budget) -> PhaseTracker:
        """Return a phase tracker that has seen the history of the process before this reading."""
        from .run_phases import PhaseTracker

        lifetime = self.history.lifetime(row.key)
        from_start = bool(lifetime) and self._first_time is not None and lifetime[0][0] > self._first_time
        phases = PhaseTracker(budget, start_time=row.process.start_time, from_start=from_start)
        for time, size in lifetime[:-1]:
            phases.add(time, size)
        return phases


class _TrackedProcess(msgspec.Struct):
    """A process of a known job on one GPU."""

    row: ProcessRow
    """Its last row while it was on the GPU."""
    phases: PhaseTracker
    ended_at: float | None = None
    """Unix seconds of the first reading without it."""
    kernel_killed: bool = False
    """At that time the kernel killed a process because host memory ran out."""


class _Reading(msgspec.Struct, frozen=True):
    """One snapshot, as far as the rows of ended processes depend on it."""

    time: float
    live: bool
    """True: this machine now; False: a recording, whose processes do not exist here."""
    present: Mapping[HistoryKey, ProcessRow]
    readable: set[GpuKey]
    """GPUs whose processes could be read."""
    places: Mapping[ProcessKey, Sequence[HistoryKey]]
    """Keys of each process on each GPU, also of those that have left it."""


_ENDED_SECONDS = 60.0
"""Time for which a process that has ended is still shown."""
_KINDS = ("desktop", "helper")
"""Kinds of processes that come, grow and go all the time."""
_LEAST_RISE_BYTES = 64 * MIB
"""A process that has risen by less since it was first seen is not looked at: there are hundreds of processes."""
_RECENT_SECONDS = 200.0
"""Nor is one whose highest reading is older."""


class _Seen(msgspec.Struct):
    """A process on one GPU."""

    row: ProcessRow
    """Its last row while it was on the GPU."""
    lowest_bytes: int
    highest_bytes: int
    rose_at: float
    """Unix seconds of the last reading above all before."""
    ended_at: float | None = None
    """Unix seconds of the first reading without it."""


class ProcessesWithoutBudget:
    """Remembers processes whose jobs are not known. Not safe for concurrent use.

    Args:
        history: memory of all processes; each snapshot is added before its rows are compared.
        is_running: returns True if a process of this machine still runs.
    """

    def __init__(self, history: MemoryHistory, is_running: Callable[[ProcessKey], bool]) -> None:
        self._history = history
        self._is_running = is_running
        self._seen: dict[HistoryKey, _Seen] = {}
        self._time = 0.0
        """Unix seconds of the latest snapshot."""

    def compare_process(self, row: ProcessRow, time: float) -> ProcessRow:
        """Return the row of a process without a budget, with what its memory says if it grows.

        Args:
            row: the process.
            time: of its snapshot, in Unix seconds.
        """
        held = None if row.gpu.is_stale else row.process.used_bytes
        seen = self._seen.get(row.key)
        if row.kind in _KINDS or (seen is None and held is None):
            return row
        if seen is None:
            seen = self._seen[row.key] = _Seen(row, held or 0, held or 0, time)
        if held is not None:
            seen.lowest_bytes = min(held, seen.lowest_bytes)
            if held > seen.highest_bytes:
                seen.highest_bytes, seen.rose_at = held, time
            seen.row = self._compared(row, seen, time)
        return replace(row, comparison=seen.row.comparison) if held is not None else row

    def ended_rows(self, snapshot: Snapshot, present: Mapping[HistoryKey, ProcessRow]) -> tuple[ProcessRow, ...]:
        """Return the processes that have ended within the last minute, with their last figures.

        Args:
            snapshot: the machine now.
            present: rows of the processes that are on GPUs; those with a budget are forgotten here.
        """
        if not 0 <= snapshot.time - self._time < _ENDED_SECONDS:  # a recording was wound on or back
            self._seen = {key: seen for key, seen in self._seen.items() if key in present}
        self._time = snapshot.time
        readable = {gpu.key for gpu in snapshot.gpus if gpu.processes is not None and not gpu.is_stale}
        ended = []
        for key, seen in list(self._seen.items()):
            if key in present:
                seen.ended_at = None
                if present[key].budget is not None:
                    del self._seen[key]
            elif seen.ended_at is not None and snapshot.time - seen.ended_at >= _ENDED_SECONDS:
                del self._seen[key]
            elif seen.ended_at is not None or seen.row.gpu.whole_gpu_key in readable:
                if seen.ended_at is None:
                    seen.ended_at = snapshot.time
                    seen.row = self._ended(seen, is_live=snapshot.source.is_live)
                ended.append(seen.row)
        return tuple(ended)

    def forget(self, pids: Collection[ProcessKey]) -> None:
        """Show these processes no longer, now that they have ended."""
        self._seen = {key: seen for key, seen in self._seen.items() if seen.row.process.key not in pids}

    def _compared(self, row: ProcessRow, seen: _Seen, time: float) -> ProcessRow:
        if seen.highest_bytes - seen.lowest_bytes < _LEAST_RISE_BYTES or time - seen.rose_at > _RECENT_SECONDS:
            return row
        from .comparison import compare_without_budget

        comparison = compare_without_budget(
            self._history.process(row.key),
            left_bytes=row.gpu.free_bytes,
            previous=seen.row.comparison.status if seen.row.comparison else None,
        )
        return replace(row, comparison=comparison)

    def _ended(self, seen: _Seen, *, is_live: bool) -> ProcessRow:
        from .comparison import Comparison, peak_usage

        row, history = seen.row, self._history.process(seen.row.key)
        last = row.comparison
        trend = last.trend if last else None
        status, how = process_end(
            last.status if last else None,
            "steady",  # nothing says that it was not
            row.process.counters,
            row.gpu,
            ended_at=seen.ended_at or 0.0,
            grew_bytes=round(trend.bytes_per_second * (usual_interval(history) or 0.0)) if trend else 0,
            still_runs=is_live and self._is_running(row.process.key),
        )
        held = f"held {format_gib(row.process.used_bytes)} GiB at the last reading"
        comparison = Comparison(
            status=status,
            observed_bytes=None,
            peak_usage=peak_usage(seen.highest_bytes, history, row.process),
            expected_bytes=None,
            sentence=f"{how}; {held}, at most {format_gib(seen.highest_bytes)} GiB",
        )
        return replace(row, comparison=comparison, ended_at=seen.ended_at)
