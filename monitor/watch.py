"""Snapshots held against jobs: the one place where what IS meets what WILL BE.

A ``Watchlist`` knows which jobs run in which processes and which jobs wait. Each snapshot that passes through it
becomes a ``Board``: immutable, complete, all that a screen or ``--once`` needs to show.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import msgspec

from vramtop.estimator.budget import Budget, Components
from vramtop.estimator.errors import VramtopError
from vramtop.estimator.gpus import Gpu, match_nvml_name
from vramtop.estimator.job import Job

from .compare import Comparison, Status, compare
from .fit import Fit, fit, rooms_of
from .history import History
from .snapshot import GpuProcess, GpuReading, Snapshot, WatchedJob

ProcessKey = tuple[int, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process on one GPU, with its job's budget where one is known."""

    gpu: GpuReading
    process: GpuProcess
    elapsed_seconds: float | None
    job: Job | None = None
    budget: Budget | None = None
    comparison: Comparison | None = None
    problem: str | None = None
    """Why the job that is known to run here has no budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU with the budgets of all known jobs that run on it."""

    reading: GpuReading
    rows: tuple[ProcessRow, ...]
    """Its processes, largest first."""

    @property
    def budgeted(self) -> tuple[ProcessRow, ...]:
        """The processes whose job has a budget."""
        return tuple(row for row in self.rows if row.budget)

    @property
    def expected_bytes(self) -> int | None:
        """What its known jobs will hold together; None when no job is known here."""
        return self._sum(lambda budget: budget.steady_device_bytes)

    @property
    def low_bytes(self) -> int | None:
        """Lower bound of ``expected_bytes``."""
        return self._sum(lambda budget: budget.peak.low_bytes)

    @property
    def high_bytes(self) -> int | None:
        """Upper bound of ``expected_bytes``."""
        return self._sum(lambda budget: budget.peak.high_bytes)

    @property
    def components(self) -> Components | None:
        """The budgets' peaks by component, added up; None when no job is known here."""
        budgets = [row.budget for row in self.rows if row.budget]
        if not budgets:
            return None
        names = [f.name for f in fields(Components)]
        return Components(**{name: sum(getattr(b.peak.components, name) for b in budgets) for name in names})

    def _sum(self, figure: Callable[[Budget], int]) -> int | None:
        budgets = [row.budget for row in self.rows if row.budget]
        return sum(figure(budget) for budget in budgets) if budgets else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRow:
    """A job that waits, and whether it would fit now."""

    job: Job
    budget: Budget | None = None
    fit: Fit | None = None
    problem: str | None = None
    """Why there is no budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Everything that is known at one moment."""

    snapshot: Snapshot
    gpus: tuple[GpuRow, ...]
    pending: tuple[PendingRow, ...]

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """Every process row of every GPU."""
        return tuple(row for gpu in self.gpus for row in gpu.rows)


@dataclass(slots=True)
class Watchlist:
    """The jobs that run and wait, and what was seen of them. Safe to use from several threads.

    Args:
        estimate: a quick estimate of a job; may raise VramtopError. Called once per job.
    """

    estimate: Callable[[Job], Budget]
    history: History = field(default_factory=History)
    card: Gpu | None = None
    """The catalogue's entry for the first GPU of the newest snapshot, for estimates meant for this machine."""
    _running: dict[ProcessKey, Job] = field(default_factory=dict)
    _pending: list[Job] = field(default_factory=list)
    _budgets: dict[bytes, Budget | str] = field(default_factory=dict)
    _statuses: dict[tuple[int, int, float | None], Status] = field(default_factory=dict)
    """Of the processes in the newest snapshot, as they were then."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def watch(self, watched: WatchedJob) -> None:
        """Hold these processes against this job from the next snapshot on."""
        with self._lock:
            self._running.update(dict.fromkeys(watched.pids, watched.job))

    def unwatch(self, pids: Iterable[ProcessKey]) -> None:
        """Forget the job of these processes."""
        with self._lock:
            for key in pids:
                self._running.pop(key, None)

    def pend(self, job: Job) -> None:
        """Put a job at the end of those that wait; one that waits already stays where it is."""
        with self._lock:
            if job not in self._pending:
                self._pending.append(job)

    def unpend(self, job: Job) -> None:
        """Take a job from those that wait."""
        with self._lock:
            if job in self._pending:
                self._pending.remove(job)

    def refine(self, budget: Budget) -> None:
        """Use a better budget for its job than the quick estimate."""
        with self._lock:
            self._budgets[_identity(budget.job)] = budget

    def watched(self) -> tuple[WatchedJob, ...]:
        """The jobs that run, with their processes."""
        with self._lock:
            jobs: dict[bytes, tuple[Job, list[ProcessKey]]] = {}
            for key, job in self._running.items():
                jobs.setdefault(_identity(job), (job, []))[1].append(key)
            return tuple(WatchedJob(job=job, pids=tuple(pids)) for job, pids in jobs.values())

    def pending(self) -> tuple[Job, ...]:
        """The jobs that wait, in order."""
        with self._lock:
            return tuple(self._pending)

    def update(self, snapshot: Snapshot) -> Board:
        """Take a snapshot in and say how everything stands now."""
        with self._lock:
            self.history.add(snapshot)
            first = next((gpu for gpu in snapshot.gpus if gpu.name), None)
            self.card = match_nvml_name(first.name, first.total_bytes) if first and first.name else None
            running = {key: w.job for w in snapshot.watched for key in w.pids} | self._running
            gpus = tuple(self._gpu_row(snapshot, gpu, running) for gpu in snapshot.gpus)
            present = {(row.gpu.index, *row.process.key) for gpu in gpus for row in gpu.rows}
            self._statuses = {key: status for key, status in self._statuses.items() if key in present}
            waiting = (*(job for job in snapshot.pending if job not in self._pending), *self._pending)
            return Board(snapshot=snapshot, gpus=gpus, pending=self._pending_rows(snapshot, gpus, waiting))

    def _gpu_row(self, snapshot: Snapshot, gpu: GpuReading, running: Mapping[ProcessKey, Job]) -> GpuRow:
        rows = (self._process_row(snapshot, gpu, process, running) for process in gpu.processes or ())
        return GpuRow(reading=gpu, rows=tuple(rows))

    def _process_row(
        self, snapshot: Snapshot, gpu: GpuReading, process: GpuProcess, running: Mapping[ProcessKey, Job]
    ) -> ProcessRow:
        elapsed = None if process.start_time is None else max(0.0, snapshot.time - process.start_time)
        job = running.get(process.key)
        if job is None:
            return ProcessRow(gpu=gpu, process=process, elapsed_seconds=elapsed)
        budget = self._budget(job)
        if isinstance(budget, str):
            return ProcessRow(gpu=gpu, process=process, elapsed_seconds=elapsed, job=job, problem=budget)
        key = (gpu.index, *process.key)
        seen, peak = self.history.process(key), self.history.peak_process(key)
        comparison = compare(
            budget,
            seen,
            elapsed_seconds=elapsed,
            peak_bytes=peak,
            left_bytes=gpu.free_bytes,
            previous=self._statuses.get(key),
        )
        self._statuses[key] = comparison.status
        return ProcessRow(
            gpu=gpu, process=process, elapsed_seconds=elapsed, job=job, budget=budget, comparison=comparison
        )

    def _pending_rows(
        self, snapshot: Snapshot, gpus: Sequence[GpuRow], waiting: Sequence[Job]
    ) -> tuple[PendingRow, ...]:
        committed = commitments(gpus)
        rows = []
        for job in waiting:
            budget = self._budget(job)
            if isinstance(budget, str):
                rows.append(PendingRow(job=job, problem=budget))
                continue
            found = fit(budget, rooms_of(snapshot, committed))
            rows.append(PendingRow(job=job, budget=budget, fit=found))
            if found.verdict in ("fits", "tight"):
                for index in found.placement:
                    committed[index] = committed.get(index, 0) + budget.peak.device_bytes
        return tuple(rows)

    def _budget(self, job: Job) -> Budget | str:
        identity = _identity(job)
        if identity not in self._budgets:
            try:
                self._budgets[identity] = self.estimate(job)
            except VramtopError as error:
                self._budgets[identity] = error.message
        return self._budgets[identity]


def commitments(gpus: Iterable[GpuRow]) -> dict[int, int]:
    """Bytes by GPU index that running jobs have not yet taken of their budgets."""
    committed: dict[int, int] = {}
    for gpu in gpus:
        for row in gpu.budgeted:
            if row.budget and row.process.used_bytes is not None:
                rest = row.budget.steady_device_bytes - row.process.used_bytes
                committed[gpu.reading.index] = committed.get(gpu.reading.index, 0) + max(0, rest)
    return committed


def _identity(job: Job) -> bytes:
    return msgspec.json.encode(job)
