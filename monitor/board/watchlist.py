"""The watchlist: known jobs, their budgets and the history of their processes; turns each snapshot into a ``Board``."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace

from ..anomalies.detector import AnomalyDetector
from ..host.process_stat import is_running
from ..snapshot.memory_history import MemoryHistory
from .board import Board, GpuRow, PendingRow, ProcessRow, RunRow
from .board_rows import committed_bytes, gpu_rows, growth_by_device, overlap
from .budget_cache import BudgetCache
from .endings import count_kernel_oom_kills, peak_sentence, process_end
from .pending_rows import PendingFits
from .without_budget import ProcessesWithoutBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job

    from ..host.available_ram import HostRam
    from ..snapshot.snapshot import (
        DeviceIndex,
        FinalCounters,
        GpuKey,
        HistoryKey,
        ProcessKey,
        Snapshot,
        WatchedJob,
    )
    from .board import AttachProgress
    from .board_rows import NoBudgetReasonFunction
    from .comparison import Status
    from .display_filter import DisplayFilter
    from .run_phases import PhaseTracker


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


class RunTracker:
    """Remembers the processes of known jobs. Not safe for concurrent use.

    Args:
        history: memory of all processes; each snapshot is added before its rows are compared.
        is_running: returns True if a process of this machine still runs.
        count_kernel_oom_kills: returns how many processes the kernel has killed because host memory ran out.
    """

    def __init__(
        self,
        history: MemoryHistory,
        is_running: Callable[[ProcessKey], bool] = is_running,
        count_kernel_oom_kills: Callable[[], int | None] = count_kernel_oom_kills,
    ) -> None:
        self._history = history
        self._is_running = is_running
        self._count_kernel_oom_kills = count_kernel_oom_kills
        self._kernel_kills: int | None = None
        """Count at the last reading, while processes are tracked."""
        self._kernel_killed = False
        """True if the count rose since the reading before."""
        self._tracked: dict[HistoryKey, _TrackedProcess] = {}
        self._run_ends: dict[tuple[ProcessKey, ...], float] = {}
        """Unix seconds at which runs were first seen to have ended, by their processes."""
        self._first_time: float | None = None
        """Time of the first snapshot."""

    def record(self, snapshot: Snapshot) -> None:
        """Add a snapshot to the history."""
        if self._first_time is None:
            self._first_time = snapshot.time
        self._history.add(snapshot, keep=self._tracked.keys())

    def compare_process(self, row: ProcessRow, budget: Budget) -> ProcessRow:
        """Return the row of a process of a known job, compared with its budget."""
        from .comparison import as_far_as_known, compare_with_budget

        known = self._tracked.get(row.key)
        phases = known.phases if known and known.phases.budget is budget else self._new_phases(row, budget)
        recent = self._history.process(row.key)
        time = recent[-1][0] if recent else row.gpu.read_at
        phases.add(time, None if row.gpu.is_stale else row.process.used_bytes, row.process.counters)
        previous = known.row.comparison if known else None
        comparison = compare_with_budget(
            phases,
            recent,
            process=row.process,
            left_bytes=row.gpu.free_bytes,
            previous=previous.status if previous else None,
        )
        comparison = as_far_as_known(comparison, budget, row.missing)
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
            before, self._kernel_kills = self._kernel_kills, self._count_kernel_oom_kills()
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
            ended = ended and not any(self._is_running(key) for key in run.pids)
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
        status: Status
        if reading.live and self._is_running(row.process.key):
            status, how = "ended", f"no longer holds memory on GPU {row.gpu.label}, but is still running"
        else:
            status, how = process_end(
                last.status,
                tracked.phases.phase,
                row.process.counters,
                row.gpu,
                ended_at=tracked.ended_at,
                kernel_killed=tracked.kernel_killed,
            )
        sentence = f"{how}; {peak_sentence(last.peak_usage, tracked.phases.budget)}"
        return replace(row, comparison=replace(last, status=status, sentence=sentence), ended_at=tracked.ended_at)

    def _new_phases(self, row: ProcessRow, budget: Budget) -> PhaseTracker:
        """Return a phase tracker that has seen the history of the process before this reading."""
        from .run_phases import PhaseTracker

        lifetime = self._history.lifetime(row.key)
        from_start = bool(lifetime) and self._first_time is not None and lifetime[0][0] > self._first_time
        phases = PhaseTracker(budget, start_time=row.process.start_time, from_start=from_start)
        for time, size in lifetime[:-1]:
            phases.add(time, size)
        return phases


@dataclass(slots=True)
class Watchlist:
    """Running and pending jobs, and the board of each snapshot. Safe to use from several threads.

    Args:
        estimate: a quick estimate of a job; may raise VramtopError. Called once per job.
        history: memory of all processes over time.
        is_running: returns True if a process of this machine still runs.
        anomaly_detector: finds anomalies on the GPUs.
        on_pending_added: called with each pending job that is added, on the caller's thread.
        on_pending_removed: called with each pending job that is removed.
        reserved_bytes: bytes by device that are reserved for jobs about to start.
        host_memory: RAM of the snapshot's machine; None: unknown, and not checked.
        display_filter: decides what is displayed; None: everything.
        no_budget_reason: why a process without a job has none, in a word or two; None: nothing to say.
        attach_progress: how many runs were read by themselves; None: none is.
    """

    estimate: Callable[[Job], Budget]
    history: MemoryHistory = field(default_factory=MemoryHistory)
    is_running: Callable[[ProcessKey], bool] = is_running
    """True if a process of this machine still runs."""
    anomaly_detector: AnomalyDetector = field(default_factory=AnomalyDetector)
    on_pending_added: Callable[[Job], None] = lambda _: None
    on_pending_removed: Callable[[Job], None] = lambda _: None
    reserved_bytes: Callable[[Snapshot], Mapping[DeviceIndex, int]] = lambda _: {}
    host_memory: Callable[[Snapshot], HostRam | None] = lambda _: None
    display_filter: DisplayFilter | None = None
    no_budget_reason: NoBudgetReasonFunction = lambda *_: None
    attach_progress: Callable[[], AttachProgress | None] = lambda: None
    _runs: tuple[WatchedJob, ...] = ()
    """In the order in which they were added, as the pending jobs."""
    _pending: tuple[Job, ...] = ()
    _dismissed: set[tuple[ProcessKey, ...]] = field(default_factory=set)
    """Process keys of recorded runs that are hidden."""
    _pending_fits: PendingFits = field(default_factory=PendingFits)
    _budgets: BudgetCache = field(init=False)
    _tracker: RunTracker = field(init=False)
    _others: ProcessesWithoutBudget = field(init=False)
    _latest: Snapshot | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._budgets = BudgetCache(self.estimate)
        self._tracker = RunTracker(self.history, self.is_running)
        self._others = ProcessesWithoutBudget(self.history, self.is_running)

    @property
    def gpu_type(self) -> Gpu | None:
        """Catalogue entry of the first GPU of the latest snapshot, for estimates meant for this machine."""
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # not at start-up

        latest = self._latest
        first = next((gpu for gpu in latest.gpus if gpu.name), None) if latest else None
        return match_nvml_name(first.name, first.total_bytes) if first and first.name else None

    def add_run(self, run: WatchedJob, budget: Budget | str | None = None) -> None:
        """Compare these processes with the budget of this job from the next snapshot on.

        The run replaces the runs that share a process with it, in the place of the first of them.

        Args:
            run: the job and its processes.
            budget: its budget, or the reason that there is none, if it was estimated already.
        """
        with self._lock:
            if budget is not None:
                self._budgets.set_if_unknown(run.job, budget)
            self._dismissed.discard(run.pids)
            at = next((at for at, known in enumerate(self._runs) if overlap(known, run)), len(self._runs))
            others = [known for known in self._runs[at:] if not overlap(known, run)]
            self._runs = (*self._runs[:at], run, *others)

    def dismiss_runs(self, pids: Iterable[ProcessKey]) -> None:
        """Remove the runs of these processes, whether they have ended or not."""
        pids = tuple(pids)
        with self._lock:
            self._dismissed.add(pids)
            self._others.forget(pids)
            self._runs = tuple(run for run in self._runs if set(pids).isdisjoint(run.pids))

    def add_pending(self, job: Job) -> None:
        """Append a pending job; one that is known already keeps its place."""
        with self._lock:
            if job in self._pending:
                return
            self._pending = (*self._pending, job)
        self.on_pending_added(job)

    def remove_pending(self, job: Job) -> None:
        """Remove a pending job."""
        with self._lock:
            if job not in self._pending:
                return
            self._pending = tuple(known for known in self._pending if known != job)
        self.on_pending_removed(job)

    def set_budget(self, budget: Budget, job: Job | None = None) -> None:
        """Replace the quick estimate of a job by a better budget.

        Args:
            budget: of the job.
            job: as it was given, if its budget is of one with more settings.
        """
        with self._lock:
            if job is not None:
                self._budgets.set_if_unknown(job, budget)
            self._budgets.set_budget(budget)

    def improve_budget(self, run: WatchedJob, budget: Budget) -> bool:
        """Replace the quick estimate of a run by a better budget; False: the run is gone, or its budget is as good."""
        with self._lock:
            known = self._budgets.budget_of(run.job) if any(run is each for each in self._runs) else ""
            better = not isinstance(known, str) and known.method == "formula" and budget.method != "formula"
            if better:
                self._budgets.set_budget(budget)
            return better

    def runs(self) -> tuple[WatchedJob, ...]:
        """Return the running jobs with their processes, in the order in which they were added."""
        with self._lock:
            return self._runs

    def pending(self) -> tuple[Job, ...]:
        """Return the pending jobs, in order."""
        with self._lock:
            return self._pending

    def update(self, snapshot: Snapshot) -> Board:
        """Record a snapshot and return the board for it."""
        with self._lock:
            if snapshot is not self._latest:
                self._tracker.record(snapshot)
                self._latest = snapshot
            return self._board(snapshot)

    def rebuild_board(self) -> Board | None:
        """Return the board of the latest snapshot after jobs or budgets have changed; None before the first."""
        with self._lock:
            return self._board(self._latest) if self._latest else None

    def _board(self, snapshot: Snapshot) -> Board:
        runs = (*self._runs, *self._recorded_runs(snapshot))
        pending = (*(job for job in snapshot.pending if job not in self._pending), *self._pending)
        ranks = {key: (run, rank, len(run.pids)) for run in runs for rank, key in enumerate(run.pids)}
        alone: dict[ProcessKey, list[GpuKey]] = {run.pids[0]: [] for run in runs if len(run.pids) == 1}
        for gpu, process in snapshot.processes() if alone else ():
            if process.key in alone:
                alone[process.key].append(gpu.key)

        def with_job(row: ProcessRow) -> ProcessRow:
            place, held = ranks.get(row.process.key), alone.get(row.process.key, [])
            if place is not None and len(held) > 1 and row.gpu.key in held:
                place = (place[0], held.index(row.gpu.key), len(held))
            return self._with_job(row, place, snapshot.time)

        gpus = gpu_rows(snapshot, with_job, self.no_budget_reason)
        committed = committed_bytes(gpus)
        for device, size in self.reserved_bytes(snapshot).items():
            committed[device] = committed.get(device, 0) + size
        board = Board(
            snapshot=snapshot,
            gpus=gpus,
            pending=self._pending_rows(snapshot, committed, pending, growth_by_device(gpus) if pending else {}),
            committed=committed,
            runs=self._tracker.run_rows(snapshot, gpus, [(run, self._budget_of_run(run, gpus)) for run in runs]),
            ended=self._others.ended_rows(snapshot, {row.key: row for gpu in gpus for row in gpu.rows}),
            anomalies=self.anomaly_detector.update(snapshot),
            attach_progress=self.attach_progress(),
        )
        self._budgets.discard_unused((*(run.job for run in runs), *pending))
        return self.display_filter.apply(board) if self.display_filter else board

    def _recorded_runs(self, snapshot: Snapshot) -> Iterable[WatchedJob]:
        """Return the runs of a recorded snapshot that are neither known nor dismissed."""
        self._dismissed &= {run.pids for run in snapshot.watched}
        unknown = (run for run in snapshot.watched if not any(overlap(run, known) for known in self._runs))
        return (run for run in unknown if run.pids not in self._dismissed)

    def _with_job(self, row: ProcessRow, place: tuple[WatchedJob, int, int] | None, time: float) -> ProcessRow:
        """Add the job of a process, its budget and its comparison to its row.

        Args:
            row: of the process.
            place: the run of which it is a rank, which one, and of how many; None: of no run.
            time: now.
        """
        if place is None:
            return self._others.compare_process(row, time)
        run, rank, ranks = place
        row = replace(row, job=run.job, missing=run.missing)
        if run.job.is_served:  # also where its command line does not say so
            row = replace(row, kind="server", program_name=run.job.engine_name)
        budget = self._budgets.budget_of_rank(run, rank, row.gpu.cuda_total_bytes, ranks=ranks)
        if isinstance(budget, str):
            return self._others.compare_process(replace(row, problem=budget), time)
        return self._tracker.compare_process(replace(row, no_budget_reason=None), budget)

    def _budget_of_run(self, run: WatchedJob, gpus: Iterable[GpuRow]) -> Budget | str:
        """Return the budget of a run; a server's is the one on the first of its GPUs."""
        budget = self._budgets.budget_of(run.job)
        if isinstance(budget, str) or budget.serving is None:
            return budget
        rows = (row for gpu in gpus for row in gpu.rows if row.process.key in run.pids)
        return next((row.budget for row in rows if row.budget is not None), budget)

    def _pending_rows(
        self,
        snapshot: Snapshot,
        committed: Mapping[DeviceIndex, int],
        pending: Sequence[Job],
        growth: Mapping[DeviceIndex, str],
    ) -> tuple[PendingRow, ...]:
        jobs = [(job, self._budgets.budget_of(job)) for job in pending]
        host = self.host_memory(snapshot) if jobs else None
        return self._pending_fits.rows(snapshot, committed, jobs, host, growth)
