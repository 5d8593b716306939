"""Who is behind a pid: user, name, command line and start time, read once per process and checked at every tick."""

import os
import pwd
import re
from dataclasses import dataclass, replace
from pathlib import Path

from .plain_text import sanitize_line

STATE_INTERVAL_TICKS = 5
"""Ticks after which a process is looked at closely again: a zombie keeps its pid and all else."""

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MOST_BYTES = 2**16
"""Of a file that is read: a command line may be megabytes."""
_REAL_USER = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
_NAME_BYTES = 15
"""The kernel cuts names to so many."""

GONE_NOTE = "not visible from here"
HIDDEN_NOTE = "its /proc may not be read"
ENDED_NOTE = "ended, its memory is still held"
ZOMBIE_NOTE = "zombie: ended, not yet reaped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What is known of one process; None for what is not."""

    start_time: float | None = None
    """Unix seconds, as psutil's ``create_time``."""
    user: str | None = None
    name: str | None = None
    command: str | None = None
    """One line, without control characters."""
    note: str | None = None
    """Why something is not known, or what is odd, in a few words."""
    parent: int | None = None
    """Its parent's pid; None also where that is in another pid namespace."""
    cpu_seconds: float | None = None
    """Processor time used so far, as of the last close look."""


@dataclass(frozen=True, slots=True)
class _Sight:
    """What /proc/PID/stat says."""

    start_ticks: int
    """Start time in clock ticks since boot."""
    thread_name: bytes
    """Changes when the process runs another program or gives itself another title."""
    zombie: bool
    parent: int | None
    cpu_ticks: int
    """Clock ticks in user and in kernel mode."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A process that was looked at before."""

    inode: int
    """Of /proc/PID: another process under the same pid has another one."""
    sight: _Sight
    facts: ProcessFacts

    def answer(self) -> ProcessFacts:
        return replace(self.facts, note=ZOMBIE_NOTE) if self.sight.zombie else self.facts


class ProcessDirectory:
    """Facts about the processes that hold GPU memory. Not for several threads.

    At every tick one ``stat`` call makes sure that a pid is still the same process; every few ticks its state is read
    too, which costs several times as much.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._this_tick: dict[int, ProcessFacts] = {}
        self._users: dict[int, str] = {}
        self._booted: float | None = None
        self._tick = 0

    def describe(self, pid: int) -> ProcessFacts:
        """Facts about ``pid`` as of this tick; the same answer until ``end_tick``."""
        facts = self._this_tick.get(pid)
        if facts is None:
            facts = self._this_tick[pid] = self._look_up(pid)
        return facts

    def end_tick(self) -> None:
        """Check everything anew from here on, and forget the processes that nobody asked about since the last time."""
        self._known = {pid: known for pid, known in self._known.items() if pid in self._this_tick}
        self._this_tick = {}
        self._booted = None
        self._tick += 1

    def _look_up(self, pid: int) -> ProcessFacts:
        known = self._known.get(pid)
        inode = _inode(pid)
        if known is not None and known.inode == inode and (pid + self._tick) % STATE_INTERVAL_TICKS:
            return known.answer()
        sight = _sight(pid)
        if sight is None or inode is None:
            return self._unseen(pid) if known is None else replace(known.facts, note=ENDED_NOTE)
        facts = _still_true(known, inode, sight) or self._read(pid, sight)
        if facts is None or _inode(pid) != inode:
            return ProcessFacts(note=GONE_NOTE)  # it ended, or its pid was reused, while it was read
        known = self._known[pid] = _Known(inode, sight, _as_seen(facts, sight))
        return known.answer()

    def _unseen(self, pid: int) -> ProcessFacts:
        """A process of which there is nothing to read; that of another user may at least be seen to be there."""
        try:
            owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - as in _inode
        except OSError:
            return ProcessFacts(note=GONE_NOTE)
        return ProcessFacts(user=self._user(owner), note=HIDDEN_NOTE)

    def _read(self, pid: int, sight: _Sight) -> ProcessFacts | None:
        """What psutil says of a process too, from two files where it opens a dozen; None where it ended meanwhile."""
        if self._booted is None:
            self._booted = boot_time()
        try:
            status, line = _content(f"/proc/{pid}/status"), _content(f"/proc/{pid}/cmdline")
        except OSError:
            return None
        found = _REAL_USER.search(status or b"")
        words = os.fsdecode(line or b"").rstrip("\0")
        return ProcessFacts(
            start_time=start_time(sight.start_ticks, booted=self._booted),
            user=self._user(int(found[1])) if found else None,
            name=sanitize_line(_whole_name(os.fsdecode(sight.thread_name.partition(b"(")[2]), words)),
            command=sanitize_line(words.replace("\0", " ")),
        )

    def _user(self, uid: int) -> str:
        """The user's name; looked up once, as the answer may come over the network."""
        if uid not in self._users:
            try:
                self._users[uid] = sanitize_line(pwd.getpwuid(uid).pw_name) or str(uid)
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]


def boot_time() -> float:
    """Unix seconds when this machine was booted; a process's start is counted from there."""
    with Path("/proc/stat").open("rb") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(b"btime"))


def start_time(ticks: int, *, booted: float) -> float:
    """Unix seconds of a start that ``stat`` gives in clock ticks, as psutil's ``create_time``."""
    return ticks / _TICKS_PER_SECOND + booted


def _whole_name(name: str, words: str) -> str:
    """The program's own name where the kernel has cut it."""
    first, *others = words.split("\0")
    program = (first if others else first.partition(" ")[0]).rpartition("/")[2]
    return program if len(os.fsencode(name)) >= _NAME_BYTES and program.startswith(name) else name


def _content(path: str) -> bytes | None:
    """The begin of a file; None where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return None
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


def _still_true(known: _Known | None, inode: int, sight: _Sight) -> ProcessFacts | None:
    """The facts of before, when the pid is still the same process and still runs the same program."""
    if known is None or known.inode != inode or known.sight.start_ticks != sight.start_ticks:
        return None
    if known.facts.command is None and not sight.zombie:
        return None  # read in the very moment of its start, perhaps
    return known.facts if known.sight.thread_name == sight.thread_name else None


def _as_seen(facts: ProcessFacts, sight: _Sight) -> ProcessFacts:
    """The facts with those of them that change while a process runs."""
    cpu_seconds = sight.cpu_ticks / _TICKS_PER_SECOND
    if facts.cpu_seconds == cpu_seconds and facts.parent == sight.parent:
        return facts
    return replace(facts, parent=sight.parent, cpu_seconds=cpu_seconds)


def _inode(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_ino  # noqa: PTH116 - Path costs more than the call itself, 500 times a tick
    except OSError:
        return None


def _sight(pid: int) -> _Sight | None:
    """Fields 2, 3, 4, 14, 15 and 22 of ``stat`` in proc(5); None where the process is gone or hidden."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(descriptor, 1024)
    except OSError:  # it ended just now
        return None
    finally:
        os.close(descriptor)
    name, _, others = line.rpartition(b")")  # the name may itself hold blanks and parentheses
    fields = others.split(None, 20)
    parent = int(fields[1]) or None
    return _Sight(int(fields[19]), name, fields[0] in b"ZX", parent, int(fields[11]) + int(fields[12]))


def namespace_pids(pid: int) -> tuple[int, ...]:
    """The numbers of a process, from the outermost pid namespace that is seen to its own (``NSpid``); empty: hidden."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [str(pid)])
    return tuple(int(number) for number in found if len(number) < 11 and number.isdecimal())
