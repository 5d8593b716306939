"""Replaces budgets by traced ones while the machine is idle: one job at a time, at the lowest priority."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.paths import current_folder
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ...board.board import Board
    from ...board.watchlist import Watchlist
    from ...snapshot.snapshot import ProcessKey, WatchedJob
    from ..attachment import Attachment
    from .worker_client import WorkerClient


CHECK_SECONDS = 10.0
"""Time between two looks at whether the machine is idle; there are none when no job waits."""
MIN_AVAILABLE_BYTES = 12 * 2**30
"""RAM that must be available before a step is traced: twice what that may take."""
MAX_WAITING = 64


class _Work(msgspec.Struct, frozen=True):
    """A run whose job waits to be traced."""

    run: WatchedJob
    environ: Mapping[str, str]
    gpu_name: str | None
    gpu_bytes: int | None
    python: str
    versions: Mapping[str, str]


class IdleTracing(msgspec.Struct, eq=False):
    """Traces the jobs of attached runs in a worker process, those that diverge or hold most first.

    Args:
        watchlist: receives the budgets.
        python: the interpreter that the user named; None: that of each job, if it is safe to run.
        corrects: correct budgets by the runs that were measured.
        is_idle: returns True if the machine has processors and RAM to spare.
        on_change: called, on a thread of its own, when a budget was replaced.
        clock: monotonic seconds.
    """

    watchlist: Watchlist
    python: str | None = None
    corrects: bool = False
    is_idle: Callable[[], bool] = lambda: machine_is_idle(MIN_AVAILABLE_BYTES)
    on_change: Callable[[], object] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Guards what waits: it is added on the thread that reads runs, and taken on the one that makes boards. Neither
        the watchlist nor the worker is called while it is held."""
    _waiting: dict[tuple[ProcessKey, ...], _Work] = {}
    """What waits to be traced, by the processes of its run."""
    _next_check: float = 0.0
    _running: bool = False
    _client: WorkerClient | None = None
    """The worker process; kept while jobs wait, as the next one is traced sooner by it."""

    def add(self, run: WatchedJob, attachment: Attachment, gpu_name: str | None, gpu_bytes: int | None) -> None:
        """Trace the job of this run later, unless that would run code that is not safe to run."""
        python = self.python or attachment.worker_python
        if python is None or run.job.model.trust_remote_code:
            return
        environ, versions = dict(attachment.estimate_environ), dict(attachment.versions)
        work = _Work(run, environ, gpu_name, gpu_bytes, python, versions)
        with self._lock:
            if len(self._waiting) < MAX_WAITING:
                self._waiting[run.pids] = work

    def observe(self, board: Board) -> None:
        """Start to trace a job if one waits and the machine is idle."""
        now = self.clock()
        if not self._waiting or self._running or now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        current = {id(run) for run in self.watchlist.runs()}
        with self._lock:
            self._waiting = {pids: work for pids, work in self._waiting.items() if id(work.run) in current}
        if not self._waiting:
            self._end_client()
            return
        if not self.is_idle():
            return
        with self._lock:
            if not self._waiting:  # closed in the meantime
                return
            work = self._waiting.pop(_most_urgent(self._waiting, board))
        self._running = True
        try:
            start_thread(threading.Thread(target=self._trace, args=(work,), name="vramtop-trace", daemon=True))
        except ProcessLimitError:  # its budget stays as it is
            self._running = False

    def close(self) -> None:
        """End what is being traced."""
        with self._lock:
            self._waiting = {}
        self._end_client()

    def _end_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _trace(self, work: _Work) -> None:
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name

        from .run_answer import TraceRequest
        from .worker_client import WorkerClient

        job, name = work.run.job, work.gpu_name
        client = self._client = self._client or WorkerClient()
        try:
            gpu_type = match_nvml_name(name, work.gpu_bytes) if name and not job.target.gpu else None
            answer = client.read(
                TraceRequest(
                    job=job,
                    gpu=gpu_type,
                    environ=work.environ,
                    python=work.python,
                    folder=current_folder(),
                    corrects=self.corrects,
                    gpu_name=name,
                    versions=work.versions,
                )
            )
            if answer.budget is not None and self.watchlist.improve_budget(work.run, answer.budget):
                self.on_change()
        finally:
            if not self._waiting:
                self._end_client()
            self._running = False


def _most_urgent(waiting: Collection[tuple[ProcessKey, ...]], board: Board) -> tuple[ProcessKey, ...]:
    """Return the run that diverges, and among those the one that holds most on one GPU."""
    urgency = dict.fromkeys(waiting, (False, 0))
    by_key = {key: pids for pids in waiting for key in pids}
    for row in board.processes:
        pids = by_key.get(row.process.key)
        if pids is not None:
            diverges = row.comparison is not None and row.comparison.diverges
            urgency[pids] = max(urgency[pids], (diverges, row.process.used_bytes or 0))
    return max(urgency, key=urgency.__getitem__)


MAX_WAITING_SHARE = 5.0
"""Per cent of the last ten seconds in which some process waited for a processor: with less, there are some to spare."""


def machine_is_idle(min_available_bytes: int, proc: Path = Path("/proc")) -> bool:
    """Return True if the machine has processors to spare, and this much RAM.

    Args:
        min_available_bytes: RAM that must be available.
        proc: where the kernel's files are.
    """
    from ...host.available_ram import available_host_memory  # not at start-up

    if available_host_memory() < min_available_bytes:
        return False
    try:
        words = (proc / "pressure" / "cpu").read_text(encoding="ascii").split()
        return float(words[1].partition("avg10=")[2]) < MAX_WAITING_SHARE
    except (OSError, ValueError, IndexError):  # a kernel without pressure stall information
        return os.getloadavg()[0] < 0.5 * (os.cpu_count() or 1)
