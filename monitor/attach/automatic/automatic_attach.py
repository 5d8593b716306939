"""Attaches to every training process on the GPUs by itself: reads it once, and adds its run with a budget."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from vramtop.estimator.common.errors import CannotTellError, ProcessLimitError, start_thread
from vramtop.estimator.common.paths import current_folder

from ...board.board import BEING_READ, LEFT_ALONE, NOT_ATTACHED, AttachProgress
from ...host.idleness import machine_is_idle
from ...host.kinds import program_of
from ...host.processes import is_running
from ...snapshot.snapshot import WatchedJob

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, MutableMapping
    from pathlib import Path

    from ...board.board import Board, NoBudgetReason, ProcessRow
    from ...board.watchlist import Watchlist
    from ...host.kinds import KnownProgram
    from ...snapshot.snapshot import GpuProcess, ProcessKey
    from ...storage.user_file import UserFile
    from ..attachment import Attachment
    from .run_answer import ReadRequest, RunAnswer
    from .worker_client import WorkerClient

# The processes that may be read automatically: which of them, in what order, and how often.


RETRY_SECONDS = (10.0, 60.0, 300.0)
"""Time from one reading to the next of a process that was read too early: Python was still starting, the settings that
it logs were not written yet."""
STARTING_SECONDS = 600.0
"""An older process has started: what could not be read of it then cannot be read later either."""
YOUNG_SECONDS = 30.0
SETTLED_SECONDS = 60.0
"""A process younger than the first is read once more after the second: by then it has logged its settings."""
MAX_READINGS = 2 * (len(RETRY_SECONDS) + 1)
"""Limit of readings of one process in its life, whatever programs it executes."""
MAX_RUNS = 256
"""Runs that are attached by themselves, largest first."""
_SPARE_CANDIDATES = 1000
_NUMBER = re.compile(r"\d+")
_LOCAL_RANK = re.compile(r"\s--local[_-]rank[= ]\d+")
KIND_REASONS: dict[str, NoBudgetReason] = {
    "server": "server", "notebook": "notebook", "desktop": "desktop", "helper": "helper", "other": "not training",
}  # fmt: skip


class Candidate(msgspec.Struct):
    """A process on a GPU, and what is known about its run."""

    key: ProcessKey
    command: str | None
    """Command line that was decided about: another one means that the process executes another program now."""
    group: Hashable
    """Key of the run that a launcher started, shared by all of its ranks."""
    kin: Hashable
    """Key shared by processes whose commands differ in numbers only: what one is not, none is."""
    used_bytes: int
    """Memory that it held on one GPU when it was seen last while it waited."""
    gpu_name: str | None
    """Name of that GPU."""
    gpu_bytes: int | None
    """Its memory."""
    is_server: bool
    reason: NoBudgetReason | None
    """Why it has no budget; None: it has one."""
    due: float | None = None
    """When it is read, or read again (monotonic seconds); None: it is decided."""
    readings: int = 0
    cpu_seconds: float | None = None
    """Processor time that it had used on the latest board, while it is to be read."""
    cpu_seconds_when_read: float | None = None
    """Processor time that it had used when it was read last."""
    run: WatchedJob | None = None
    """The run that was added for it."""
    run_shown: bool = False
    """``run`` has been on a board."""

    @property
    def waits(self) -> bool:
        """True until it has been read for the first time."""
        return self.due is not None and not self.readings

    def see(self, row: ProcessRow) -> None:
        """Take the figures of a row."""
        self.used_bytes, self.is_server = row.process.used_bytes or 0, row.kind == "server"
        self.gpu_name, self.gpu_bytes = row.gpu.name, row.gpu.total_bytes
        self.cpu_seconds = row.process.cpu_seconds

    @property
    def has_worked(self) -> bool:
        """True unless it has used no processor time since it was read: then reading it again finds nothing new."""
        return self.cpu_seconds is None or self.cpu_seconds != self.cpu_seconds_when_read


def reason_by_kind(process: GpuProcess, program: KnownProgram) -> NoBudgetReason | None:
    """Return why a process of this kind is not read; None: it may be read, if it is this machine's."""
    if program.kind == "unknown":
        return None if process.command or not process.note else "no access"
    return None if program.may_have_job else KIND_REASONS.get(program.kind)


class Candidates:
    """All processes that were seen on the GPUs. Not safe for concurrent use, but for ``reason``.

    Args:
        left_alone: processes that the user wants left alone.
    """

    def __init__(self, left_alone: Container[ProcessKey]) -> None:
        self._left_alone = left_alone
        self._by_key: dict[ProcessKey, Candidate] = {}
        self._groups: dict[Hashable, list[Candidate]] = {}
        self._kin: dict[Hashable, list[Candidate]] = {}
        self._queue: list[Candidate] = []
        """What is to be read now, the most pressing last; some of it may have been decided since."""
        self._first_due: float | None = None
        self._counts: tuple[int, int] | None = (0, 0)
        """The answer of ``count_groups``; None: something has changed since."""

    def is_due(self, now: float) -> bool:
        """Return True if a process is to be read now."""
        return bool(self._queue) or (self._first_due is not None and self._first_due <= now)

    def get(self, key: ProcessKey) -> Candidate | None:
        """Return a candidate; None: it has not been seen."""
        return self._by_key.get(key)

    def reason(self, process: GpuProcess, program: KnownProgram) -> NoBudgetReason | None:
        """Return why a process has no budget; None: it has one, or it does not say."""
        candidate = self._by_key.get(process.key)
        if candidate is not None:
            return candidate.reason
        return LEFT_ALONE if process.key in self._left_alone else reason_by_kind(process, program) or BEING_READ

    def update(self, rows: Collection[ProcessRow], now: float) -> list[ProcessKey]:
        """Take in the processes that are on the GPUs now; those that are decided already cost a look-up each.

        Returns:
            Processes that were left alone, and that the user has attached to since.
        """
        wanted, changed = [], False
        for row in rows:
            candidate = self._by_key.get(row.process.key)
            if candidate is None:
                self._add(row, now)
                changed = True
                continue
            if row.job is not None:
                candidate.run_shown = True
                if candidate.reason == LEFT_ALONE:
                    candidate.reason = None
                    wanted.append(candidate.key)
            elif candidate.run_shown:  # the user has dismissed its run
                candidate.run_shown, changed = False, True
                self._leave(candidate)
            if candidate.command != row.process.command:
                self._execute(candidate, row, now)
                changed = True
            elif candidate.due is not None:
                if candidate.waits and (row.process.used_bytes or 0) > candidate.used_bytes:
                    candidate.see(row)
                candidate.cpu_seconds = row.process.cpu_seconds
                if candidate.readings and candidate.due <= now and not candidate.has_worked:
                    self._postpone(candidate, now)
                    changed = True
        if len(self._by_key) > 2 * len(rows) + _SPARE_CANDIDATES:
            self._forget_all_but({row.process.key for row in rows})
            changed = True
        if changed:
            self._look_again()
        return wanted

    def next_due(self, now: float) -> Candidate | None:
        """Return the process to read next, the one with most memory first; None: none yet."""
        if not self._queue and self.is_due(now):
            waiting = [each for each in self._by_key.values() if each.due is not None]
            self._queue = [each for each in waiting if each.due is not None and each.due <= now]
            self._queue.sort(key=lambda each: (-each.readings, each.used_bytes))
            later = (each.due for each in waiting if each.due is not None and each.due > now)
            self._first_due = min(later, default=None)
        while self._queue:
            candidate = self._queue.pop()
            if candidate.due is not None and candidate.due <= now:
                return candidate
        return None

    def settle(self, candidate: Candidate, answer: RunAnswer, now: float, *, time: float) -> None:
        """Record that a process was read: its reason counts for all waiting processes of its group.

        Args:
            candidate: the process.
            answer: what was read.
            now: monotonic seconds.
            time: Unix seconds.
        """
        candidate.readings += 1
        candidate.cpu_seconds_when_read = candidate.cpu_seconds
        candidate.due = self._again(candidate, answer, now, time=time)
        reason: NoBudgetReason | None = "server" if answer.reason and candidate.is_server else answer.reason
        if candidate.run is None:
            candidate.reason = reason
        if (answer.attachment is None and answer.reason != "ended") or answer.reason == "job not read":
            for each in self._kin[candidate.kin]:
                if each.waits:
                    each.due, each.reason = None, reason
        self._expect(candidate.due)

    def attach(
        self, reader: Candidate, keys: Iterable[ProcessKey], run: WatchedJob | None, reason: NoBudgetReason | None
    ) -> None:
        """Record that these processes are the ranks of a run, which is read by way of one of its processes.

        Args:
            reader: the process that was read, and may be read again.
            keys: the ranks.
            run: what is compared with its budget; None: somebody else added the run.
            reason: why it has no budget; None: it has one.
        """
        for key in keys:
            candidate = self._by_key.get(key)
            if candidate is not None:
                candidate.run, candidate.run_shown, candidate.reason = run, False, reason
                if candidate is not reader:
                    candidate.due = None
        self._counts = None

    def leave_alone(self, keys: Iterable[ProcessKey]) -> None:
        """Read these processes no more."""
        for key in keys:
            candidate = self._by_key.get(key)
            if candidate is not None:
                self._leave(candidate)

    def read_again(self, keys: Iterable[ProcessKey], now: float) -> None:
        """Read these processes now, whatever is known about them."""
        for key in keys:
            candidate = self._by_key.get(key)
            if candidate is not None:
                candidate.reason, candidate.due, candidate.readings = BEING_READ, now, 0
        self._look_again()

    def keys_of_group(self, key: ProcessKey) -> tuple[ProcessKey, ...]:
        """Return the processes that were started like this one, such as the ranks of its run; itself among them."""
        candidate = self._by_key.get(key)
        return (key,) if candidate is None else tuple(each.key for each in self._groups[candidate.group])

    def count_groups(self) -> tuple[int, int]:
        """Return the groups that were read and all that were to be read."""
        if self._counts is None:
            read = [
                not any(each.waits for each in members)
                for members in self._groups.values()
                if any(each.readings or each.waits or each.run for each in members)
            ]
            self._counts = sum(read), len(read)
        return self._counts

    def _add(self, row: ProcessRow, now: float) -> None:
        process = row.process
        candidate = self._by_key[process.key] = Candidate(
            key=process.key,
            command=process.command,
            group=_group(process, _LOCAL_RANK),
            kin=_group(process, _NUMBER),
            used_bytes=0,
            gpu_name=None,
            gpu_bytes=None,
            is_server=False,
            reason=None,
        )
        candidate.see(row)
        self._file(candidate)
        if row.job is not None:  # somebody attached to it before
            return
        if process.key in self._left_alone:
            candidate.reason = LEFT_ALONE
            return
        candidate.reason = reason_by_kind(row.process, program_of(row.process)) or (
            "no access" if process.start_time is None else None
        )
        if candidate.reason is None:
            candidate.reason, candidate.due = BEING_READ, now

    def _execute(self, candidate: Candidate, row: ProcessRow, now: float) -> None:
        """Decide again about a process that executes another program now, or has given itself a title."""
        candidate.command = row.process.command
        candidate.see(row)
        if candidate.reason == LEFT_ALONE or candidate.readings >= MAX_READINGS:
            return
        if row.job is not None:
            candidate.due = now if candidate.run is not None else None
            return
        reason = reason_by_kind(row.process, program_of(row.process))
        candidate.reason, candidate.due = (reason, None) if reason else (BEING_READ, now)

    def _leave(self, candidate: Candidate) -> None:
        candidate.run, candidate.reason, candidate.due = None, LEFT_ALONE, None
        self._counts = None

    def _forget_all_but(self, present: Container[ProcessKey]) -> None:
        self._by_key = {key: each for key, each in self._by_key.items() if key in present}
        self._groups, self._kin = {}, {}
        for each in self._by_key.values():
            self._file(each)

    def _file(self, candidate: Candidate) -> None:
        self._groups.setdefault(candidate.group, []).append(candidate)
        self._kin.setdefault(candidate.kin, []).append(candidate)

    def _again(self, candidate: Candidate, answer: RunAnswer, now: float, *, time: float) -> float | None:
        if candidate.readings >= MAX_READINGS:
            return None
        age = time - (candidate.key[1] or 0.0)
        if answer.too_early and age < STARTING_SECONDS and candidate.readings <= len(RETRY_SECONDS):
            return now + RETRY_SECONDS[candidate.readings - 1]
        if answer.too_early or answer.attachment is None or candidate.readings > 1 or age >= YOUNG_SECONDS:
            return None
        return now + SETTLED_SECONDS

    def _postpone(self, candidate: Candidate, now: float) -> None:
        """Skip a reading."""
        candidate.readings += 1
        is_last = candidate.readings > len(RETRY_SECONDS)
        candidate.due = None if is_last else now + RETRY_SECONDS[candidate.readings - 1]

    def _look_again(self) -> None:
        """Collect anew what is to be read: something was added, or has changed."""
        self._queue, self._counts = [], None
        self._first_due = min((each.due for each in self._by_key.values() if each.due is not None), default=None)

    def _expect(self, due: float | None) -> None:
        self._counts = None
        if due is not None:
            self._first_due = due if self._first_due is None else min(due, self._first_due)


def _group(process: GpuProcess, left_out: re.Pattern[str]) -> Hashable:
    """Return a key of all processes that the same parent started by the same command, but for a part of it."""
    if process.parent is None or process.parent <= 1:
        return process.key
    return process.parent, process.user, left_out.sub("", process.command or "")


# The processes that the user wants left alone, for as long as they live: kept in a file of the user's data folder.


_VERSION = 1
_MAX_PROCESSES = 1000
_Keys = list[tuple[int, float | None]]


class LeftAlone:
    """A set of processes, and its file; changes are written on their own thread.

    Args:
        path: of the file; None: ``left-alone.json`` in the user's data folder.
        notify: called on any thread with a sentence if the file could not be read or written.
    """

    def __init__(self, path: Path | None = None, notify: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self.notify = notify
        self._keys: set[ProcessKey] | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def add(self, keys: Iterable[ProcessKey]) -> None:
        """Leave these processes alone."""
        added = set(keys)
        self._known.update(added)
        self._change(lambda saved: saved | added)

    def remove(self, keys: Iterable[ProcessKey]) -> None:
        """Leave these processes alone no longer."""
        removed = self._known & set(keys)
        if removed:
            self._known.difference_update(removed)
            self._change(lambda saved: saved - removed)

    @property
    def _known(self) -> set[ProcessKey]:
        if self._keys is None:
            try:
                self._keys = {(pid, start) for pid, start in self._file.read()}
            except CannotTellError as error:
                self._keys = set()
                self.notify(error.message)
        return self._keys

    def _change(self, change: Callable[[set[ProcessKey]], set[ProcessKey]]) -> None:
        from ...storage.user_file import change_in_background

        def changed(saved: _Keys) -> _Keys:
            keys = change({(pid, start) for pid, start in saved})
            return sorted((key for key in keys if is_running(key)), key=str)[:_MAX_PROCESSES]

        change_in_background(lambda: self._file, changed, self.notify, thread="save the processes left alone")

    @property
    def _file(self) -> UserFile[_Keys]:
        from ...storage.user_file import UserFile, data_file  # not before a process could be left alone

        path = self._path or data_file("left-alone.json")
        return UserFile(path, kind=_Keys, empty=list, version=_VERSION, description="the processes that you left alone")


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
        left_alone: the processes that the user wants left alone.
        tracing: replaces budgets by traced ones while the machine is idle; None: they stay.
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
        left_alone: LeftAlone | None = None,
        tracing: IdleTracing | None = None,
        corrects: bool = False,
        on_change: Callable[[], object] = lambda: None,
        on_bug: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watchlist = watchlist
        self.enabled = enabled
        """Read processes; they are named by their kind in any case."""
        self.left_alone = LeftAlone() if left_alone is None else left_alone
        self._tracing = tracing
        self._corrects = corrects
        self.on_change = on_change
        self._on_bug = on_bug
        self._clock = clock
        self._candidates = Candidates(self.left_alone)
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
        if tracing is not None:
            tracing.on_change = self._changed
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
        if self._tracing is not None:
            self._tracing.close()

    def reason_of(self, process: GpuProcess, program: KnownProgram) -> NoBudgetReason | None:
        """Return why a process has no budget, in a word or two; None: nothing is known about it."""
        if self.enabled and self._live:
            return self._candidates.reason(process, program)
        if self.enabled and not self._time:
            return reason_by_kind(process, program) or BEING_READ
        if self._live:
            return reason_by_kind(process, program) or NOT_ATTACHED
        return reason_by_kind(process, program) or KIND_REASONS.get(program.kind)

    def progress(self) -> AttachProgress | None:
        """Return how many runs have been read; None: nothing is read by itself."""
        if not self.enabled or (self._time and not self._live):
            return None
        with self._lock:
            read, total = self._candidates.count_groups()
        return AttachProgress(read=read, total=total)

    def observe(self, board: Board) -> None:
        """Take note of the processes on a board, and read those that are new."""
        self._time, self._live = board.snapshot.time, board.snapshot.source.is_live
        if not self.enabled or not self._live:
            return
        now, rows = self._clock(), board.processes  # those that are displayed
        with self._lock:
            wanted = self._candidates.update(rows, now)
            if is_due := self._candidates.is_due(now):
                self._on_gpu = frozenset(process.pid for _, process in board.snapshot.processes())
                self.finished.clear()
        if wanted:
            self.left_alone.remove(wanted)
        self._drop_ended(board)
        if is_due:
            self._wake()
        elif self._tracing is not None:
            self._tracing.observe(board)

    def candidate(self, key: ProcessKey) -> Candidate | None:
        """Return what is known about a process; None: it has not been seen."""
        return self._candidates.get(key)

    def _changed(self) -> None:
        self.on_change()

    def toggle(self, row: ProcessRow) -> str:
        """Leave the run of a process alone, or attach to it again; returns what was done, in a sentence."""
        key = row.process.key
        run = next((run for run in self._watchlist.runs() if key in run.pids), None)
        with self._lock:
            keys = self._candidates.keys_of_group(key) if run is None else tuple({key, *run.pids})
        if run is None and row.no_budget_reason in (LEFT_ALONE, NOT_ATTACHED):
            self.left_alone.remove(keys)
            with self._lock:
                self._candidates.read_again(keys, self._clock())
                self.finished.clear()
            self._wake()
            return f"Process {row.process.pid} is attached to again." if self.enabled else _DISABLED
        self.left_alone.add(keys)
        self._watchlist.dismiss_runs(keys)
        with self._lock:
            if run is not None:
                self._own.pop(run.pids, None)
            self._candidates.leave_alone(keys)
        count = len(keys)
        who = f"Process {row.process.pid} is" if count == 1 else f"The {count} processes of this run are"
        return f"{who} left alone; press l to attach again."

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
        from .worker_client import WorkerClient

        self._client = client = WorkerClient()
        changed_at: float | None = None
        try:
            while (candidate := self._next()) is not None:
                self._take(candidate, client.read(self._request(candidate)))
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

    def _request(self, candidate: Candidate) -> ReadRequest:
        from .run_answer import ReadRequest

        pid, start_time = candidate.key
        return ReadRequest(
            pid=pid,
            start_time=start_time,
            on_gpu=self._on_gpu,
            gpu_name=candidate.gpu_name,
            gpu_bytes=candidate.gpu_bytes,
            folder=current_folder(),
            corrects=self._corrects,
            settings=self.settings,
        )

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
            if self._tracing is not None and answer.budget is not None and not answer.missing:
                self._tracing.add(run, answer.attachment, candidate.gpu_name, candidate.gpu_bytes)
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


_DISABLED = "vramtop was started with --no-attach; press a to attach to a process."


# Replaces budgets by traced ones while the machine is idle: one job at a time, at the lowest priority.


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


class IdleTracing:
    """Traces the jobs of attached runs in a worker process, those that diverge or hold most first.

    Args:
        watchlist: receives the budgets.
        python: the interpreter that the user named; None: that of each job, if it is safe to run.
        corrects: correct budgets by the runs that were measured.
        is_idle: returns True if the machine has processors and RAM to spare.
        on_change: called, on a thread of its own, when a budget was replaced.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        python: str | None = None,
        corrects: bool = False,
        is_idle: Callable[[], bool] = lambda: machine_is_idle(MIN_AVAILABLE_BYTES),
        on_change: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watchlist = watchlist
        self._python = python
        self._corrects = corrects
        self._is_idle = is_idle
        self.on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        """Guards what waits: it is added on the thread that reads runs, and taken on the one that makes boards. Neither
        the watchlist nor the worker is called while it is held."""
        self._waiting: dict[tuple[ProcessKey, ...], _Work] = {}
        """What waits to be traced, by the processes of its run."""
        self._next_check = 0.0
        self._running = False
        self._client: WorkerClient | None = None
        """The worker process; kept while jobs wait, as the next one is traced sooner by it."""

    def add(self, run: WatchedJob, attachment: Attachment, gpu_name: str | None, gpu_bytes: int | None) -> None:
        """Trace the job of this run later, unless that would run code that is not safe to run."""
        python = self._python or attachment.worker_python
        if python is None or run.job.model.trust_remote_code:
            return
        environ, versions = dict(attachment.estimate_environ), dict(attachment.versions)
        work = _Work(run, environ, gpu_name, gpu_bytes, python, versions)
        with self._lock:
            if len(self._waiting) < MAX_WAITING:
                self._waiting[run.pids] = work

    def observe(self, board: Board) -> None:
        """Start to trace a job if one waits and the machine is idle."""
        now = self._clock()
        if not self._waiting or self._running or now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        current = {id(run) for run in self._watchlist.runs()}
        with self._lock:
            self._waiting = {pids: work for pids, work in self._waiting.items() if id(work.run) in current}
        if not self._waiting:
            self._end_client()
            return
        if not self._is_idle():
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
                    corrects=self._corrects,
                    gpu_name=name,
                    versions=work.versions,
                )
            )
            if answer.budget is not None and self._watchlist.improve_budget(work.run, answer.budget):
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
