"""The watchlist: known jobs, their budgets and the history of their processes; turns each snapshot into a ``Board``."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib

from ..anomalies.detector import AnomalyDetector
from ..host.known_programs import program_of
from ..host.plain_text import duration_text
from ..host.process_stat import is_running
from ..snapshot.memory_history import MemoryHistory
from ..snapshot.mig_devices import mig_devices, processes_by_device
from .board import AttachProgress, Board, GpuRow, NoBudgetReason, PendingRow, ProcessRow
from .budget_cache import BudgetCache, job_key
from .run_tracker import ProcessesWithoutBudget, RunTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.common.errors import Verdict
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job

    from ..host.known_programs import KnownProgram
    from ..snapshot.snapshot import DeviceIndex, GpuKey, GpuProcess, GpuReading, ProcessKey, Snapshot, WatchedJob
    from .capacity import DeviceCapacity
    from .display_filter import DisplayFilter
    from .fit_result import FitResult

    NoBudgetReasonFunction = Callable[[GpuProcess, KnownProgram], NoBudgetReason | None]


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
    _pending_fits: PendingFits = field(init=False)
    _budgets: BudgetCache = field(init=False)
    _tracker: RunTracker = field(init=False)
    _others: ProcessesWithoutBudget = field(init=False)
    _latest: Snapshot | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._pending_fits = PendingFits()
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
            at = next((at for at, known in enumerate(self._runs) if _overlap(known, run)), len(self._runs))
            others = [known for known in self._runs[at:] if not _overlap(known, run)]
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
        host, growth = (self.host_memory(snapshot), _growth_by_device(gpus)) if jobs else (None, {})
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
        unknown = (run for run in snapshot.watched if not any(_overlap(run, known) for known in self._runs))
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


def gpu_rows(
    snapshot: Snapshot, with_job: Callable[[ProcessRow], ProcessRow], reason: NoBudgetReasonFunction = lambda *_: None
) -> tuple[GpuRow, ...]:
    """Return one row per GPU of a snapshot.

    Args:
        snapshot: the machine now.
        with_job: adds the job of a process to its row, if it is known.
        reason: returns why a process has no budget, in a word or two, as long as it has none.
    """
    found = []
    for gpu in snapshot.gpus:
        devices = mig_devices(gpu)
        rows = tuple(
            with_job(_process_row(snapshot, device, process, reason))
            for device, process in processes_by_device(gpu, devices)
        )
        inside = [(device, {id(process) for process in device.processes or ()}) for device in devices]
        parts = (
            GpuRow(reading=device, rows=tuple(row for row in rows if id(row.process) in ids)) for device, ids in inside
        )
        found.append(GpuRow(reading=gpu, rows=rows, devices=tuple(parts)))
    return tuple(found)


def committed_bytes(gpus: Iterable[GpuRow]) -> dict[DeviceIndex, int]:
    """Return the bytes by device that running jobs will yet allocate: budget less memory, for jobs not yet steady."""
    committed: dict[DeviceIndex, int] = {}
    for gpu in gpus:
        for row in gpu.rows_with_budget:
            steady = row.comparison is not None and row.comparison.phase == "steady"
            if row.budget and row.process.used_bytes is not None and not steady:
                remaining = row.budget.steady_device_bytes - row.process.used_bytes
                device = row.process.device_index_on(gpu.reading.index)
                committed[device] = committed.get(device, 0) + max(0, remaining)
    return committed


def _growth_by_device(gpus: Iterable[GpuRow]) -> dict[DeviceIndex, str]:
    """Return which process grows on a device and when it will be full, of the one that fills it first."""
    found: dict[DeviceIndex, tuple[float, str]] = {}
    for gpu in gpus:
        for row in gpu.rows:
            seconds = row.full_seconds
            if seconds is None or row.comparison is None or row.comparison.status != "growing":
                continue
            name = row.job.label if row.job and row.job.has_label else f"process {row.process.pid}"
            device = row.process.device_index_on(gpu.reading.index)
            sentence = f"{name} grows, GPU {gpu.reading.index} full in about {duration_text(seconds)}"
            found[device] = min(found.get(device, (seconds, sentence)), (seconds, sentence))
    return {device: sentence for device, (_, sentence) in found.items()}


def _process_row(
    snapshot: Snapshot, gpu: GpuReading, process: GpuProcess, reason: NoBudgetReasonFunction
) -> ProcessRow:
    elapsed = None if process.start_time is None else max(0.0, snapshot.time - process.start_time)
    program = program_of(process)
    return ProcessRow(
        gpu=gpu,
        process=process,
        elapsed_seconds=elapsed,
        is_live=snapshot.source.is_live,
        kind=program.kind,
        program_name=program.name,
        no_budget_reason=reason(process, program),
    )


def _overlap(one: WatchedJob, other: WatchedJob) -> bool:
    """Return True if two runs have a process in common."""
    return not set(one.pids).isdisjoint(other.pids)


_MIN_CONTRARY_READINGS = 3
"""Consecutive readings that change whether a pending job fits: processes come and go."""


class PendingFits:
    """Checks the pending jobs at each snapshot and remembers which of them fit. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._fits: dict[bytes, _DebouncedFit] = {}

    def rows(
        self,
        snapshot: Snapshot,
        committed: Mapping[DeviceIndex, int],
        jobs: Sequence[tuple[Job, Budget | str]],
        host: int | None,
        growth: Mapping[DeviceIndex, str],
    ) -> tuple[PendingRow, ...]:
        """Return the row of each pending job; a job that fits takes its memory from those behind it.

        Args:
            snapshot: the machine now.
            committed: bytes by device that running jobs will yet allocate or that are reserved.
            jobs: pending jobs in order, each with its budget or the reason that there is none.
            host: bytes of RAM that jobs can use; None: unknown.
            growth: what will take the free memory of a device, in a sentence.
        """
        before, self._fits = self._fits, {}
        if not jobs:
            return ()
        from .capacity import commit, device_capacities  # not before there is a pending job

        devices = device_capacities(snapshot, committed)
        devices = tuple(replace(each, growth=growth.get(each.device_index)) for each in devices)
        rows = []
        for job, budget in jobs:
            if isinstance(budget, str):
                rows.append(PendingRow(job=job, problem=budget))
                continue
            if not devices:
                need = format_gib(budget.ranks.highest.device_bytes)
                problem = f"needs {need} GiB, and no GPU is visible here"
                rows.append(PendingRow(job=job, budget=budget, problem=problem))
                continue
            key = job_key(job)
            fit = self._fits[key] = before.get(key) or _DebouncedFit()
            chosen = [each for each in devices if not job.target.devices or each.uuid in job.target.devices]
            result = _check_pending(job, budget, chosen, host, fit.verdict)
            fit.verdict = result.verdict
            fit.add(result.verdict == "fits", snapshot.time)
            fits = fit.fits is True
            rows.append(PendingRow(job=job, budget=budget, fit=result, fits=fits, fits_changed_at=fit.changed_at))
            if result.verdict in ("fits", "tight"):
                devices = commit(devices, result.bytes_by_device)
        return tuple(rows)


class _DebouncedFit(msgspec.Struct):
    """Debounced verdict of a pending job: it changes only after several readings in a row."""

    verdict: Verdict | None = None
    """Verdict at the reading before."""
    fits: bool | None = None
    changed_at: float | None = None
    """Unix seconds."""
    _contrary_readings: int = 0
    _last_time: float | None = None

    def add(self, fits: bool, time: float) -> None:
        if time == self._last_time:  # the same reading again
            return
        self._last_time = time
        if self.fits is None:
            self.fits = fits
        self._contrary_readings = self._contrary_readings + 1 if fits != self.fits else 0
        if self._contrary_readings >= _MIN_CONTRARY_READINGS:
            self.fits, self.changed_at, self._contrary_readings = fits, time, 0


def _check_pending(
    job: Job, budget: Budget, devices: Sequence[DeviceCapacity], host: int | None, previous: Verdict | None
) -> FitResult:
    """Return whether a job fits; the verdict stays while less than is displayed would change it."""
    from .fit import check_fit, with_host_memory

    def check(slack: int) -> FitResult:
        room = (None if each.free_bytes is None else each.free_bytes + slack for each in devices)
        result = check_fit(budget, [replace(each, free_bytes=free) for each, free in zip(devices, room, strict=True)])
        if host is None:
            return result
        return with_host_memory(result, budget, host + slack, ranks=job.parallel.processes)

    result = check(0)
    if previous in (None, result.verdict):
        return result
    others = (check(slack) for slack in (UNSEEN_BYTES, -UNSEEN_BYTES))
    return next((other for other in others if other.verdict == previous), result)
