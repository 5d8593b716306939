"""Snapshots held against jobs: the one place where what IS meets what WILL BE.

A ``Watchlist`` knows which jobs run in which processes and which jobs wait. Each snapshot that passes through it
becomes a ``Board``: all that a screen or ``--once`` needs to show.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import format_gib

from ..anomalies.detector import AnomalyDetector
from ..host.process_identity import is_running
from ..snapshot.history import History
from ..snapshot.mig_devices import mig_devices, processes_by_device
from .board import Board, GpuRow, PendingRow, ProcessRow, commitments
from .run_tracker import RunTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vramtop.estimator.budget.budget import Budget, RankPeak
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job

    from ..host.host_memory import HostRam
    from ..snapshot.mig_devices import MigDevice
    from ..snapshot.snapshot import DeviceIndex, GpuProcess, GpuReading, ProcessKey, Snapshot, WatchedJob

_MOST_BUDGETS = 64
"""Those of jobs that run or wait are kept however many they are."""
_TURNED_READINGS = 3
"""A job that waits fits, or does not, when so many readings in a row say so: processes come and go."""


@dataclass(slots=True)
class _Standing:
    """Whether a job that waits fits, without the flicker of single readings."""

    fits: bool | None = None
    turned_at: float | None = None
    _against: int = 0
    """Readings in a row that say otherwise."""
    _newest: float | None = None

    def take(self, fits: bool, time: float) -> None:
        if time == self._newest:  # the same reading, looked at again
            return
        self._newest = time
        if self.fits is None:
            self.fits = fits
        self._against = self._against + 1 if fits != self.fits else 0
        if self._against >= _TURNED_READINGS:
            self.fits, self.turned_at, self._against = fits, time, 0


@dataclass(slots=True)
class Watchlist:
    """The jobs that run and wait, and what was seen of them. Safe to use from several threads.

    Args:
        estimate: a quick estimate of a job; may raise VramtopError. Called once per job.
        history: what was seen of all processes.
        is_running: whether a process of this machine still runs.
        anomaly_detector: finds what is odd on the GPUs.
        on_pending_added: told of each job that begins to wait, on the caller's thread.
        on_pending_removed: told of each that waits no longer.
        reserved_bytes: bytes by place that are promised to jobs about to start.
        host_memory: the RAM of the snapshot's machine; None: not known, and not reckoned with.
    """

    estimate: Callable[[Job], Budget]
    history: History = field(default_factory=History)
    is_running: Callable[[ProcessKey], bool] = is_running
    """Whether a process of this machine still runs."""
    anomaly_detector: AnomalyDetector = field(default_factory=AnomalyDetector)
    on_pending_added: Callable[[Job], None] = lambda _: None
    on_pending_removed: Callable[[Job], None] = lambda _: None
    reserved_bytes: Callable[[Snapshot], Mapping[DeviceIndex, int]] = lambda _: {}
    host_memory: Callable[[Snapshot], HostRam | None] = lambda _: None
    _runs: list[WatchedJob] = field(default_factory=list)
    _pending: list[Job] = field(default_factory=list)
    _budgets: dict[bytes, Budget | str] = field(default_factory=dict)
    _dismissed: set[tuple[ProcessKey, ...]] = field(default_factory=set)
    """Runs of a recording that are to be seen no more."""
    _of_ranks: dict[tuple[RankPeak, int], tuple[Budget, Budget]] = field(default_factory=dict)
    """The same budget gives the same object, by which its processes are followed."""
    _standings: dict[bytes, _Standing] = field(default_factory=dict)
    """Of the jobs that wait."""
    _follower: RunTracker = field(init=False)
    _newest: Snapshot | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._follower = RunTracker(self.history, self.is_running)

    @property
    def gpu_type(self) -> Gpu | None:
        """The catalogue's entry for the first GPU of the newest snapshot, for estimates meant for this machine."""
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # not at start-up

        newest = self._newest
        first = next((gpu for gpu in newest.gpus if gpu.name), None) if newest else None
        return match_nvml_name(first.name, first.total_bytes) if first and first.name else None

    def add_run(self, watched: WatchedJob) -> None:
        """Hold these processes against this job from the next snapshot on; it takes the place of an older one."""
        with self._lock:
            self._dismissed.discard(watched.pids)
            at = next((at for at, run in enumerate(self._runs) if _overlap(run, watched)), len(self._runs))
            others = [run for run in self._runs[at:] if not _overlap(run, watched)]
            self._runs = [*self._runs[:at], watched, *others]

    def dismiss_runs(self, pids: Iterable[ProcessKey]) -> None:
        """Forget the runs of these processes, whether they have ended or not."""
        with self._lock:
            keys = set(pids)
            self._dismissed.add(tuple(pids))
            self._runs = [run for run in self._runs if not keys & set(run.pids)]

    def add_pending(self, job: Job) -> None:
        """Put a job at the end of those that wait; one that waits already stays where it is."""
        with self._lock:
            if job in self._pending:
                return
            self._pending.append(job)
        self.on_pending_added(job)

    def remove_pending(self, job: Job) -> None:
        """Take a job from those that wait."""
        with self._lock:
            if job not in self._pending:
                return
            self._pending.remove(job)
        self.on_pending_removed(job)

    def set_budget(self, budget: Budget) -> None:
        """Use a better budget for its job than the quick estimate."""
        with self._lock:
            self._keep(_identity(budget.job), budget)

    def runs(self) -> tuple[WatchedJob, ...]:
        """The jobs that run, with their processes, in the order in which they came to be known."""
        with self._lock:
            return tuple(self._runs)

    def pending(self) -> tuple[Job, ...]:
        """The jobs that wait, in order."""
        with self._lock:
            return tuple(self._pending)

    def update(self, snapshot: Snapshot) -> Board:
        """Take a snapshot in and say how everything stands now."""
        with self._lock:
            if snapshot is not self._newest:
                self._follower.record(snapshot)
                self._newest = snapshot
            watched = (*self._runs, *self._recorded(snapshot))
            running = {key: (run, at) for run in watched for at, key in enumerate(run.pids)}
            gpus = tuple(self._gpu_row(snapshot, gpu, running) for gpu in snapshot.gpus)
            waiting = (*(job for job in snapshot.pending if job not in self._pending), *self._pending)
            committed = commitments(gpus)
            for place, size in self.reserved_bytes(snapshot).items():
                committed[place] = committed.get(place, 0) + size
            return Board(
                snapshot=snapshot,
                gpus=gpus,
                pending=self._pending_rows(snapshot, committed, waiting),
                committed=committed,
                runs=self._follower.run_rows(snapshot, gpus, watched, self._budget),
                anomalies=self.anomaly_detector.update(snapshot),
            )

    def rebuild_board(self) -> Board | None:
        """The newest snapshot anew, after jobs or budgets have changed; None before the first."""
        with self._lock:
            return self.update(self._newest) if self._newest else None

    def _recorded(self, snapshot: Snapshot) -> Iterable[WatchedJob]:
        """The runs that a recording knows, without those of one's own and those dismissed."""
        self._dismissed &= {run.pids for run in snapshot.watched}
        mine = self._runs
        return [
            run
            for run in snapshot.watched
            if run.pids not in self._dismissed and not any(_overlap(run, own) for own in mine)
        ]

    def _gpu_row(
        self, snapshot: Snapshot, gpu: GpuReading, running: Mapping[ProcessKey, tuple[WatchedJob, int]]
    ) -> GpuRow:
        devices = mig_devices(gpu)
        homes = processes_by_device(gpu, devices)
        rows = tuple(self._process_row(snapshot, home, process, running) for home, process in homes)
        return GpuRow(reading=gpu, rows=rows, devices=tuple(_device_row(device, rows) for device in devices))

    def _process_row(
        self,
        snapshot: Snapshot,
        gpu: GpuReading,
        process: GpuProcess,
        running: Mapping[ProcessKey, tuple[WatchedJob, int]],
    ) -> ProcessRow:
        elapsed = None if process.start_time is None else max(0.0, snapshot.time - process.start_time)
        run, rank = running.get(process.key, (None, 0))
        row = ProcessRow(gpu=gpu, process=process, elapsed_seconds=elapsed, job=run.job if run else None)
        if run is None:
            return row
        budget = self._budget_of(run, rank)
        return replace(row, problem=budget) if isinstance(budget, str) else self._follower.compare_process(row, budget)

    def _pending_rows(
        self, snapshot: Snapshot, committed: Mapping[DeviceIndex, int], waiting: Sequence[Job]
    ) -> tuple[PendingRow, ...]:
        if not waiting:
            self._standings = {}
            return ()
        from .fit_check import check_fit, device_capacities, with_host_memory  # not before there is a job that waits

        committed = dict(committed)
        host = self.host_memory(snapshot)
        rows = []
        standings: dict[bytes, _Standing] = {}
        for job in waiting:
            budget = self._budget(job)
            if isinstance(budget, str):
                rows.append(PendingRow(job=job, problem=budget))
                continue
            if not snapshot.gpus:
                need = format_gib(max(rank.device_bytes for rank in budget.ranks))
                rows.append(PendingRow(job=job, budget=budget, problem=f"needs {need} GiB, and no GPU is seen here"))
                continue
            found = check_fit(budget, device_capacities(snapshot, committed))
            if host is not None:
                found = with_host_memory(found, budget, host, ranks=job.parallel.world_size)
            standing = standings[_identity(job)] = self._standings.get(_identity(job)) or _Standing()
            standing.take(found.verdict == "fits", snapshot.time)
            turned = standing.turned_at
            rows.append(
                PendingRow(job=job, budget=budget, fit=found, fits=standing.fits is True, fits_changed_at=turned)
            )
            if found.verdict in ("fits", "tight"):
                for room, size in found.bytes_by_device:
                    committed[room.place] = committed.get(room.place, 0) + size
        self._standings = standings
        return tuple(rows)

    def _budget_of(self, run: WatchedJob, rank: int) -> Budget | str:
        """Of a process by its place in the run: pipeline stages differ, where all of them are on this machine."""
        budget = self._budget(run.job)
        if isinstance(budget, str) or not budget.stages or len(run.pids) != run.job.parallel.world_size:
            return budget
        need = budget.ranks[rank]
        kept = self._of_ranks.get((need, id(budget)))
        if kept is None or kept[0] is not budget:
            kept = self._of_ranks[need, id(budget)] = budget, budget.of_rank(rank)
        return kept[1]

    def _budget(self, job: Job) -> Budget | str:
        identity = _identity(job)
        if identity not in self._budgets:
            try:
                self._keep(identity, self.estimate(job))
            except VramtopError as error:
                self._keep(identity, error.message)
        return self._budgets[identity]

    def _keep(self, identity: bytes, budget: Budget | str) -> None:
        """Remember a budget; of jobs that neither run nor wait any more, the oldest are forgotten."""
        self._budgets[identity] = budget
        if len(self._budgets) <= _MOST_BUDGETS:
            return
        recorded = self._newest.watched if self._newest else ()
        waiting = (*self._pending, *(self._newest.pending if self._newest else ()))
        jobs = (*(run.job for run in (*self._runs, *recorded)), *waiting)
        used = {identity, *map(_identity, jobs)}
        for each in [each for each in self._budgets if each not in used][: len(self._budgets) - _MOST_BUDGETS]:
            del self._budgets[each]
        left = {id(budget) for budget in self._budgets.values()}
        self._of_ranks = {key: kept for key, kept in self._of_ranks.items() if id(kept[0]) in left}


def _device_row(device: MigDevice, rows: Sequence[ProcessRow]) -> GpuRow:
    inside = {id(process) for process in device.processes or ()}
    return GpuRow(reading=device, rows=tuple(row for row in rows if id(row.process) in inside))


def _identity(job: Job) -> bytes:
    import msgspec  # not before there is a job

    return msgspec.json.encode(job)


def _overlap(one: WatchedJob, other: WatchedJob) -> bool:
    return not set(one.pids).isdisjoint(other.pids)
