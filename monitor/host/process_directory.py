"""User, name, command line and start time of the processes on the GPUs, read once per process and checked each tick.

For the tree view, also of the processes that have started them: launchers, shells, scheduler steps.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed_arguments

from .containers import container_info
from .known_programs import starts_sessions
from .plain_text import displayed_line, sanitize_line
from .process_stat import ProcessStat, boot_time, read_stat, real_uid

STATE_INTERVAL_TICKS = 5
"""Ticks after which a process's state is read again: a zombie keeps its pid and everything else."""
GONE_NOTE = "not visible from here"
HIDDEN_NOTE = "its /proc may not be read"
ENDED_NOTE = "ended, its memory is still held"
ZOMBIE_NOTE = "zombie: ended, not yet reaped"


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one process; None for those that are unknown."""

    start_time: float | None = None
    """Unix seconds, equal to psutil's ``create_time``."""
    user: str | None = None
    name: str | None = None
    command: str | None = None
    """One line, without control characters."""
    note: str | None = None
    """Why something is unknown or unusual, in a few words."""
    runs_in: str | None = None
    """The Slurm job, pod or container that it runs in."""
    parent: int | None = None
    """Its parent's pid; None also where that is in another pid namespace."""
    parent_name: str | None = None
    """Short name of its parent, read once for all of its children."""
    cpu_seconds: float | None = None
    """Processor time used so far, as of the last time its state was read."""


class ProcessDirectory:
    """Facts about the processes that hold GPU memory. Not thread-safe.

    At every tick one ``stat`` call makes sure that a pid is still the same process; its state, which costs several
    times as much to read, is read every ``STATE_INTERVAL_TICKS``.
    """

    def __init__(self) -> None:
        self._known: dict[int, _KnownProcess] = {}
        self._this_tick: dict[int, ProcessFacts] = {}
        self._users: dict[int, str] = {}
        self._parent_names: dict[int, str | None] = {}
        self._boot_time: float | None = None
        self._tick = 0

    def describe(self, pid: int) -> ProcessFacts:
        """Return the facts about ``pid`` as of this tick; the answer stays the same until ``end_tick``."""
        facts = self._this_tick.get(pid)
        if facts is None:
            facts = self._this_tick[pid] = self._look_up(pid)
        return facts

    def end_tick(self) -> None:
        """Begin the next tick, and forget the processes that were not asked for in the last one."""
        self._known = {pid: known for pid, known in self._known.items() if pid in self._this_tick}
        self._this_tick = {}
        if self._parent_names:
            parents = {known.facts.parent for known in self._known.values()}
            self._parent_names = {pid: name for pid, name in self._parent_names.items() if pid in parents}
        self._boot_time = None
        self._tick += 1

    def _look_up(self, pid: int) -> ProcessFacts:
        known = self._known.get(pid)
        inode = _inode(pid)
        if known is not None and known.inode == inode and (pid + self._tick) % STATE_INTERVAL_TICKS:
            return known.current_facts()
        stat = read_stat(pid)
        if stat is None or inode is None:
            return self._unreadable(pid) if known is None else replace(known.facts, note=ENDED_NOTE)
        facts = _facts_if_unchanged(known, inode, stat) or self._read(pid, stat)
        if facts is None or _inode(pid) != inode:
            return ProcessFacts(note=GONE_NOTE)  # it ended, or its pid was reused, while it was read
        known = self._known[pid] = _KnownProcess(inode, stat, self._with_counters(facts, stat))
        return known.current_facts()

    def _unreadable(self, pid: int) -> ProcessFacts:
        """Return the facts about a process that cannot be read: of another user's, at least whose it is."""
        try:
            owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - as in _inode
        except OSError:
            return ProcessFacts(note=GONE_NOTE)
        return ProcessFacts(user=self._user(owner), note=HIDDEN_NOTE)

    def _read(self, pid: int, stat: ProcessStat) -> ProcessFacts | None:
        """Return the same facts as psutil, from two files where psutil opens a dozen; None if the process has ended."""
        if self._boot_time is None:
            self._boot_time = boot_time()
        try:
            status, line = _read_file(f"/proc/{pid}/status"), _read_file(f"/proc/{pid}/cmdline")
        except OSError:
            return None
        uid = real_uid(status or b"")
        arguments = os.fsdecode(line or b"").rstrip("\0")
        # sanitized before secrets are masked: escape sequences could hide their form
        plain = [sanitize_line(argument, cut=False) or "" for argument in arguments.split("\0")]
        name = displayed_line(_full_name(os.fsdecode(stat.thread_name.partition(b"(")[2]), arguments))
        return ProcessFacts(
            start_time=stat.start_time(self._boot_time),
            user=None if uid is None else self._user(uid),
            name=name or None,
            command=sanitize_line(" ".join(displayed_arguments(plain))),
            runs_in=_runs_in(pid),
        )

    def _with_counters(self, facts: ProcessFacts, stat: ProcessStat) -> ProcessFacts:
        """Return the facts with those updated that change while a process runs."""
        if facts.cpu_seconds == stat.cpu_seconds and facts.parent == stat.parent:
            return facts
        name = self._parent_name(stat.parent)
        return replace(facts, parent=stat.parent, parent_name=name, cpu_seconds=stat.cpu_seconds)

    def _parent_name(self, parent: int | None) -> str | None:
        if parent is None:
            return None
        if parent not in self._parent_names:
            stat = read_stat(parent)
            name = None if stat is None else displayed_line(os.fsdecode(stat.thread_name.partition(b"(")[2]))
            self._parent_names[parent] = name or None
        return self._parent_names[parent]

    def _user(self, uid: int) -> str:
        """Return the user's name; looked up once, as the answer may come over the network."""
        if uid not in self._users:
            try:
                self._users[uid] = sanitize_line(pwd.getpwuid(uid).pw_name) or str(uid)
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]


class _KnownProcess(msgspec.Struct, frozen=True):
    """A process that was read in an earlier tick."""

    inode: int
    """Inode of ``/proc/PID``: another process with the same pid has another one."""
    stat: ProcessStat
    facts: ProcessFacts

    def current_facts(self) -> ProcessFacts:
        return replace(self.facts, note=ZOMBIE_NOTE) if self.stat.is_zombie else self.facts


def _runs_in(pid: int) -> str | None:
    try:
        block = os.fsdecode(_read_file(f"/proc/{pid}/environ") or b"")
    except OSError:  # another user's: the cgroup says which job it is
        block = ""
    environ = {name: value for name, _, value in (line.partition("=") for line in block.split("\0"))}
    return displayed_line(next(iter(container_info(pid, environ)), None)) or None


_KERNEL_NAME_BYTES = 15
"""The kernel cuts process names to this length."""


def _full_name(name: str, arguments: str) -> str:
    """Return the program's full name where the kernel has cut it."""
    first, *others = arguments.split("\0")
    program = (first if others else first.partition(" ")[0]).rpartition("/")[2]
    return program if len(os.fsencode(name)) >= _KERNEL_NAME_BYTES and program.startswith(name) else name


_MAX_FILE_BYTES = 2**16
"""Read of each file: a command line may be megabytes long."""


def _read_file(path: str) -> bytes | None:
    """Return the beginning of a file; None if it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return None
    try:
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _facts_if_unchanged(known: _KnownProcess | None, inode: int, stat: ProcessStat) -> ProcessFacts | None:
    """Return the known facts if the pid is still the same process and still runs the same program."""
    if known is None or known.inode != inode or known.stat.start_ticks != stat.start_ticks:
        return None
    if known.facts.command is None and not stat.is_zombie:
        return None  # perhaps read at the very moment of its start
    return known.facts if known.stat.thread_name == stat.thread_name else None


def _inode(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_ino  # noqa: PTH116 - Path costs more than the call itself, 500 times a tick
    except OSError:
        return None


_MAX_ANCESTORS = 64
"""More are not followed from one process."""


class Ancestor(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has started others, and is on no GPU itself."""

    pid: int
    name: str | None = None
    command: str | None = None
    user: str | None = None
    parent: int | None = None
    """Pid of the next ancestor; None: that one starts whole sessions, and is of no interest."""


class AncestryReader:
    """Reads ancestors from ``/proc``; what was read of a process is kept while it is asked for. Not thread-safe."""

    def __init__(self) -> None:
        self._directory = ProcessDirectory()

    def read(self, parents: Collection[int], on_gpu: Collection[int]) -> Mapping[int, Ancestor]:
        """Return the ancestors by pid, up to the one that starts sessions.

        Args:
            parents: pids of the parents of the processes on the GPUs.
            on_gpu: pids of these processes, which are no ancestors to be read.
        """
        found: dict[int, Ancestor] = {}
        for parent in parents:
            pid: int | None = parent
            for _ in range(_MAX_ANCESTORS):
                if pid is None or pid <= 1 or pid in found or pid in on_gpu:
                    break
                facts = self._directory.describe(pid)
                if facts.note == GONE_NOTE or starts_sessions(facts.name):
                    break
                found[pid] = Ancestor(
                    pid=pid, name=facts.name, command=facts.command, user=facts.user, parent=facts.parent
                )
                pid = facts.parent
        self._directory.end_tick()
        return found
