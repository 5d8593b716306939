"""The processes that may be read automatically: which of them, in what order, and how often."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ...board.board import BEING_READ, LEFT_ALONE, NoBudgetReason, ProcessRow
from ...host.known_programs import program_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from ...host.known_programs import KnownProgram
    from ...snapshot.snapshot import GpuProcess, ProcessKey, WatchedJob
    from .worker_client import RunAnswer


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
        """Update this process with the figures of its row."""
        self.used_bytes, self.is_server = row.process.used_bytes or 0, row.kind == "server"
        self.gpu_name, self.gpu_bytes = row.gpu.name, row.gpu.total_bytes
        self.cpu_seconds = row.process.cpu_seconds


def reason_by_kind(process: GpuProcess, program: KnownProgram) -> NoBudgetReason | None:
    """Return why a process of this kind is not read; None: it may be read, if it is this machine's."""
    if program.kind == "unknown":
        return None if process.command or not process.note else "no access"
    return None if program.may_have_job else KIND_REASONS.get(program.kind)


class Candidates:
    """All processes that were seen on the GPUs. Not safe for concurrent use, but for ``reason``."""

    def __init__(self) -> None:
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
        return reason_by_kind(process, program) or BEING_READ

    def update(self, rows: Collection[ProcessRow], now: float) -> None:
        """Take in the processes that are on the GPUs now; those that are decided already cost a look-up each."""
        changed = False
        for row in rows:
            candidate = self._by_key.get(row.process.key)
            if candidate is None:
                self._add(row, now)
                changed = True
                continue
            if row.job is not None:
                candidate.run_shown = True
                if candidate.reason == LEFT_ALONE:
                    candidate.reason = None  # the user has attached to it
            elif candidate.run_shown:  # the user has dismissed its run
                candidate.run_shown, changed = False, True
                candidate.run, candidate.reason, candidate.due = None, LEFT_ALONE, None
            if candidate.command != row.process.command:
                self._execute(candidate, row, now)
                changed = True
            elif candidate.due is not None:
                if candidate.waits and (row.process.used_bytes or 0) > candidate.used_bytes:
                    candidate.see(row)
                candidate.cpu_seconds = row.process.cpu_seconds
                slept = candidate.cpu_seconds is not None and candidate.cpu_seconds == candidate.cpu_seconds_when_read
                if candidate.readings and candidate.due <= now and slept:
                    candidate.readings += 1  # one is skipped: it would find nothing new
                    is_last = candidate.readings > len(RETRY_SECONDS)
                    candidate.due = None if is_last else now + RETRY_SECONDS[candidate.readings - 1]
                    changed = True
        if len(self._by_key) > 2 * len(rows) + _SPARE_CANDIDATES:
            present = {row.process.key for row in rows}
            self._by_key = {key: each for key, each in self._by_key.items() if key in present}
            self._groups, self._kin, changed = {}, {}, True
            for each in self._by_key.values():
                self._file(each)
        if changed:  # collect anew what is to be read
            self._queue, self._counts = [], None
            self._first_due = min((each.due for each in self._by_key.values() if each.due is not None), default=None)

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
        self._counts = None
        if candidate.due is not None:
            self._first_due = candidate.due if self._first_due is None else min(candidate.due, self._first_due)

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
        for candidate in (self._by_key[key] for key in keys if key in self._by_key):
            candidate.run, candidate.run_shown, candidate.reason = run, False, reason
            if candidate is not reader:
                candidate.due = None
        self._counts = None

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


def _group(process: GpuProcess, left_out: re.Pattern[str]) -> Hashable:
    """Return a key of all processes that the same parent started by the same command, but for a part of it."""
    if process.parent is None or process.parent <= 1:
        return process.key
    return process.parent, process.user, left_out.sub("", process.command or "")
