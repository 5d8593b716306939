"""The watchlist: known jobs, their budgets and the history of their processes; turns each snapshot into a ``Board``."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramtop.estimator.common.records import replace

from ..anomalies.detector import AnomalyDetector
from ..host.process_stat import is_running
from ..snapshot.memory_history import MemoryHistory
from .board import AttachProgress, Board, GpuRow, ProcessRow
from .board_rows import committed_bytes, gpu_rows, growth_by_device, overlap
from .budget_cache import BudgetCache
from .pending_rows import PendingFits
from .run_tracker import RunTracker
from .without_budget import ProcessesWithoutBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job

    from ..snapshot.snapshot import DeviceIndex, GpuKey, ProcessKey, Snapshot, WatchedJob
    from .board_rows import NoBudgetReasonFunction
    from .display_filter import DisplayFilter


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
    host_memory: Callable[[Snapshot], int | None] = lambda _: None
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
        jobs = [(job, self._budgets.budget_of(job)) for job in pending]
        host, growth = (self.host_memory(snapshot), growth_by_device(gpus)) if jobs else (None, {})
        board = Board(
            snapshot=snapshot,
            gpus=gpus,
            pending=self._pending_fits.rows(snapshot, committed, jobs, host, growth),
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
