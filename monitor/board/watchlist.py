"""The watchlist: known jobs, their budgets and the history of their processes; turns each snapshot into a ``Board``."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..anomalies import AnomalyDetector
from ..host import is_running
from ..snapshot import MemoryHistory
from .board import Board
from .budget_cache import BudgetCache
from .gpu_rows import committed_bytes, gpu_rows
from .job_registry import JobRegistry
from .pending_rows import PendingFits
from .run_tracker import RunTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job import Gpu, Job

    from ..host import HostRam
    from ..snapshot import DeviceIndex, ProcessKey, Snapshot, WatchedJob
    from .board import AttachProgress, GpuRow, PendingRow, ProcessRow
    from .display_filter import DisplayFilter
    from .gpu_rows import NoBudgetReasonFunction


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
    _jobs: JobRegistry = field(default_factory=JobRegistry)
    _pending_fits: PendingFits = field(default_factory=PendingFits)
    _budgets: BudgetCache = field(init=False)
    _tracker: RunTracker = field(init=False)
    _latest: Snapshot | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._budgets = BudgetCache(self.estimate)
        self._tracker = RunTracker(self.history, self.is_running)

    @property
    def gpu_type(self) -> Gpu | None:
        """Catalogue entry of the first GPU of the latest snapshot, for estimates meant for this machine."""
        from vramtop.estimator.job import match_nvml_name  # not at start-up

        latest = self._latest
        first = next((gpu for gpu in latest.gpus if gpu.name), None) if latest else None
        return match_nvml_name(first.name, first.total_bytes) if first and first.name else None

    def add_run(self, run: WatchedJob, budget: Budget | str | None = None) -> None:
        """Compare these processes with the budget of this job from the next snapshot on.

        Args:
            run: the job and its processes.
            budget: its budget, or the reason that there is none, if it was estimated already.
        """
        with self._lock:
            if budget is not None:
                self._budgets.set_if_unknown(run.job, budget)
            self._jobs.add_run(run)

    def dismiss_runs(self, pids: Iterable[ProcessKey]) -> None:
        """Remove the runs of these processes, whether they have ended or not."""
        with self._lock:
            self._jobs.dismiss_runs(pids)

    def add_pending(self, job: Job) -> None:
        """Append a pending job; one that is known already keeps its place."""
        with self._lock:
            added = self._jobs.add_pending(job)
        if added:
            self.on_pending_added(job)

    def remove_pending(self, job: Job) -> None:
        """Remove a pending job."""
        with self._lock:
            removed = self._jobs.remove_pending(job)
        if removed:
            self.on_pending_removed(job)

    def set_budget(self, budget: Budget) -> None:
        """Replace the quick estimate of a job by a better budget."""
        with self._lock:
            self._budgets.set_budget(budget)

    def improve_budget(self, run: WatchedJob, budget: Budget) -> bool:
        """Replace the quick estimate of a run by a better budget; False: the run is gone, or its budget is as good."""
        with self._lock:
            known = self._budgets.budget_of(run.job) if any(run is each for each in self._jobs.runs) else ""
            better = not isinstance(known, str) and known.method == "formula" and budget.method != "formula"
            if better:
                self._budgets.set_budget(budget)
            return better

    def runs(self) -> tuple[WatchedJob, ...]:
        """Return the running jobs with their processes, in the order in which they were added."""
        with self._lock:
            return self._jobs.runs

    def pending(self) -> tuple[Job, ...]:
        """Return the pending jobs, in order."""
        with self._lock:
            return self._jobs.pending

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
        runs, pending = self._jobs.runs_with(snapshot), self._jobs.pending_with(snapshot)
        rank_of = {key: (run, rank) for run in runs for rank, key in enumerate(run.pids)}
        gpus = gpu_rows(snapshot, lambda row: self._with_job(row, rank_of), self.no_budget_reason)
        committed = committed_bytes(gpus)
        for device, size in self.reserved_bytes(snapshot).items():
            committed[device] = committed.get(device, 0) + size
        board = Board(
            snapshot=snapshot,
            gpus=gpus,
            pending=self._pending_rows(snapshot, committed, pending),
            committed=committed,
            runs=self._tracker.run_rows(snapshot, gpus, [(run, self._budget_of_run(run, gpus)) for run in runs]),
            anomalies=self.anomaly_detector.update(snapshot),
            attach_progress=self.attach_progress(),
        )
        self._budgets.discard_unused((*(run.job for run in runs), *pending))
        return self.display_filter.apply(board) if self.display_filter else board

    def _with_job(self, row: ProcessRow, rank_of: Mapping[ProcessKey, tuple[WatchedJob, int]]) -> ProcessRow:
        """Add the job of a process, its budget and its comparison to its row."""
        if row.process.key not in rank_of:
            return row
        run, rank = rank_of[row.process.key]
        row = replace(row, job=run.job, missing=run.missing)
        if run.job.is_served:  # also where its command line does not say so
            row = replace(row, kind="server", program_name=run.job.engine_name)
        budget = self._budgets.budget_of_rank(run, rank, row.gpu.cuda_total_bytes)
        if isinstance(budget, str):
            return replace(row, problem=budget)
        return self._tracker.compare_process(replace(row, no_budget_reason=None), budget)

    def _budget_of_run(self, run: WatchedJob, gpus: Iterable[GpuRow]) -> Budget | str:
        """Return the budget of a run; a server's is the one on the first of its GPUs."""
        budget = self._budgets.budget_of(run.job)
        if isinstance(budget, str) or budget.serving is None:
            return budget
        rows = (row for gpu in gpus for row in gpu.rows if row.process.key in run.pids)
        return next((row.budget for row in rows if row.budget is not None), budget)

    def _pending_rows(
        self, snapshot: Snapshot, committed: Mapping[DeviceIndex, int], pending: Sequence[Job]
    ) -> tuple[PendingRow, ...]:
        jobs = [(job, self._budgets.budget_of(job)) for job in pending]
        return self._pending_fits.rows(snapshot, committed, jobs, self.host_memory(snapshot) if jobs else None)
