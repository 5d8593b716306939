"""Attaches to every training process on the GPUs by itself: reads it once, and adds its run with a budget."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.paths import current_folder
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread

from ...board.board import BEING_READ, LEFT_ALONE, NOT_ATTACHED, AttachProgress, Board, NoBudgetReason
from ...snapshot.snapshot import GpuProcess, ProcessKey, WatchedJob
from .candidates import KIND_REASONS, MAX_RUNS, Candidate, Candidates, reason_by_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from ...board.watchlist import Watchlist
    from ...history.run_recorder import RunRecorder
    from ...host.known_programs import KnownProgram
    from ..attachment import Attachment
    from .worker_client import RunAnswer, WorkerClient


ENDED_RUN_SECONDS = 600.0
"""An ended run that was attached by itself stays on the board for this time, unless it ran out of memory."""
MAX_ENDED_RUNS = 16
"""Limit of ended runs on the board, of those that ran out of memory too; the latest stay."""
_NOTIFY_SECONDS = 0.25
"""Boards are not rebuilt more often than this while runs are read."""
_MAX_BUGS = 20


class AutomaticAttach:
    """Reads training processes in a worker process, the largest first, each once in its life.

    ``observe`` receives each board and is cheap; a thread and the worker exist only while there is something to read.
    The watchlist takes its reasons and its progress from here.

    Args:
        watchlist: receives the runs.
        enabled: False: nothing is read; processes are still named by their kind.
        recorder: keeps measurements of the runs; None: none are kept.
        corrects: correct budgets by the runs that were measured.
        on_change: called, on a thread of its own, when the watchlist has changed.
        on_bug: called, likewise, with the traceback of an unexpected failure.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        enabled: bool = True,
        recorder: RunRecorder | None = None,
        corrects: bool = False,
        on_change: Callable[[], object] = lambda: None,
        on_bug: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watchlist = watchlist
        self.enabled = enabled
        """Read processes; they are named by their kind in any case."""
        self._recorder = recorder
        self._corrects = corrects
        self.on_change = on_change
        self._on_bug = on_bug
        self._clock = clock
        self._candidates = Candidates()
        self._lock = threading.Lock()
        """Guards the candidates, the own runs, and whether the thread runs: boards are observed on one thread, runs are
        read on another, and the user acts on a third. The watchlist is never called while it is held: it asks for
        reasons and progress under its own lock."""
        self._started = False
        self._running = False
        self._closing = threading.Event()
        self._client: WorkerClient | None = None
        self._own: dict[tuple[ProcessKey, ...], WatchedJob] = {}
        """The runs that were added here, by their processes; the user may have replaced or dismissed some."""
        self._on_gpu: frozenset[int] = frozenset()
        self._time = 0.0
        self._live = False
        self.settings: Mapping[str, Any] = {}
        """Settings of whatever job is read, by dotted key: the user has named them."""
        self.known: MutableMapping[ProcessKey, Attachment] = {}
        """What was read of each rank of a run; shared with whoever reads runs besides."""
        self.bugs: deque[str] = deque(maxlen=_MAX_BUGS)
        """Tracebacks of unexpected failures."""
        self.finished = threading.Event()
        """Set while nothing waits to be read for the first time."""
        self.finished.set()
        if recorder is not None:
            recorder.facts = self.known.get
        watchlist.no_budget_reason, watchlist.attach_progress = self.reason_of, self.progress

    def start(self) -> None:
        """Read from now on; boards may have been observed before."""
        self._started = True
        self._wake()

    def close(self) -> None:
        """End all reading."""
        self._closing.set()
        if self._client is not None:
            self._client.close()

    def reason_of(self, process: GpuProcess, program: KnownProgram) -> NoBudgetReason | None:
        """Return why a process has no budget, in a word or two; None: nothing is known about it."""
        if self.enabled and self._live:
            return self._candidates.reason(process, program)
        otherwise = NOT_ATTACHED if self._live else KIND_REASONS.get(program.kind)
        return reason_by_kind(process, program) or (BEING_READ if self.enabled and not self._time else otherwise)

    def progress(self) -> AttachProgress | None:
        """Return how many runs have been read; None: nothing is read by itself."""
        if not self.enabled or (self._time and not self._live):
            return None
        with self._lock:
            read, total = self._candidates.count_groups()
        return AttachProgress(read=read, total=total)

    def observe(self, board: Board) -> None:
        """Take note of the processes on a board, read those that are new, and measure the runs."""
        if self._recorder is not None:
            self._recorder.observe(board)
        self._time, self._live = board.snapshot.time, board.snapshot.source.is_live
        if not self.enabled or not self._live:
            return
        now, rows = self._clock(), board.processes  # those that are displayed
        with self._lock:
            self._candidates.update(rows, now)
            if is_due := self._candidates.is_due(now):
                self._on_gpu = frozenset(process.pid for _, process in board.snapshot.processes())
                self.finished.clear()
        self._drop_ended(board)
        if is_due:
            self._wake()

    def candidate(self, key: ProcessKey) -> Candidate | None:
        """Return what is known about a process; None: it has not been seen."""
        return self._candidates.get(key)

    def _wake(self) -> None:
        with self._lock:
            if not self._started or self._running or self._closing.is_set():
                return
            self._running = True
        try:
            start_thread(threading.Thread(target=self._run, name="vramtop-attach", daemon=True))
        except ProcessLimitError:  # the next board tries again
            with self._lock:
                self._running = False

    def _run(self) -> None:
        from .worker_client import ReadRequest, WorkerClient

        self._client = client = WorkerClient()
        changed_at: float | None = None
        try:
            while (candidate := self._next()) is not None:
                pid, start_time = candidate.key
                request = ReadRequest(
                    pid=pid,
                    start_time=start_time,
                    on_gpu=self._on_gpu,
                    gpu_name=candidate.gpu_name,
                    gpu_bytes=candidate.gpu_bytes,
                    folder=current_folder(),
                    corrects=self._corrects,
                    settings=self.settings,
                )
                self._take(candidate, client.read(request))
                if changed_at is None or self._clock() - changed_at >= _NOTIFY_SECONDS:
                    self.on_change()
                    changed_at = self._clock()
        except BaseException:
            with self._lock:
                self._running = False
                self.finished.set()
            raise
        finally:
            client.close()
            if changed_at is not None and not self._closing.is_set():
                self.on_change()

    def _next(self) -> Candidate | None:
        """Return the next process to read; None: the thread ends, as there is none."""
        with self._lock:
            candidate = None if self._closing.is_set() else self._candidates.next_due(self._clock())
            while candidate is not None and len(self._own) >= MAX_RUNS and candidate.run is None:
                candidate.reason, candidate.due = "too many", None
                candidate = self._candidates.next_due(self._clock())
            if candidate is None:
                self._running = False
                self.finished.set()
            return candidate

    def _take(self, candidate: Candidate, answer: RunAnswer) -> None:
        """Add the run that was read, unless the user has decided about it in the meantime."""
        if self._closing.is_set():  # the worker was ended
            return
        if answer.traceback is not None:
            self.bugs.append(answer.traceback)
            self._on_bug(answer.traceback)
        before = candidate.run
        with self._lock:
            if candidate.reason == LEFT_ALONE:
                candidate.due = None
                return
            self._candidates.settle(candidate, answer, self._clock(), time=self._time)
        if answer.attachment is None or answer.job is None or answer.reason == "job not read":
            if before is not None and answer.reason in ("not training", "job not read"):
                self._watchlist.dismiss_runs(before.pids)  # it executes another program now
            return
        keys = tuple((rank.pid, rank.start_time) for rank in answer.attachment.ranks)
        others = [run for run in self._watchlist.runs() if not set(run.pids).isdisjoint(keys) and run is not before]
        run = WatchedJob(job=answer.job, pids=keys, missing=answer.missing)
        if not others and run != before:
            self.known.update(dict.fromkeys(keys, answer.attachment))
            self._watchlist.add_run(run, answer.budget or answer.sentence)
            self._note_own(run, before)
        with self._lock:
            added = before if run == before else None if others else run
            self._candidates.attach(candidate, keys, added, None if others else answer.reason)
            if candidate.key not in keys:
                candidate.reason = "helper"

    def _note_own(self, run: WatchedJob, before: WatchedJob | None) -> None:
        """Note that a run was added here, in place of an earlier one of the same processes."""
        followed = {id(each) for each in self._watchlist.runs()}
        with self._lock:
            if before is not None:
                self._own.pop(before.pids, None)
            self._own[run.pids] = run
            if len(self._own) >= MAX_RUNS:  # some may have been dismissed
                self._own = {pids: each for pids, each in self._own.items() if id(each) in followed}

    def _drop_ended(self, board: Board) -> None:
        """Dismiss runs that were attached by themselves a while after their end: nobody asked for them."""
        ended = [run for run in board.runs if run.ended_at is not None]
        if not ended:
            return
        followed = {run.pids: run for run in self._watchlist.runs()}
        with self._lock:
            mine = dict(self._own)
        own = [run for run in ended if run.pids in mine and followed.get(run.pids) is mine[run.pids]]
        own.sort(key=lambda run: -(run.ended_at or 0.0))
        for at, run in enumerate(own):
            failed = any(row.comparison and row.comparison.status == "out_of_memory" for row in run.rows)
            is_old = board.snapshot.time - (run.ended_at or 0.0) >= ENDED_RUN_SECONDS
            if at >= MAX_ENDED_RUNS or (is_old and not failed):
                self._watchlist.dismiss_runs(run.pids)
                with self._lock:
                    self._own.pop(run.pids, None)
                for key in run.pids:
                    self.known.pop(key, None)
