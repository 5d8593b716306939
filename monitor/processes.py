"""Who is behind a pid: user, name, command line and start time, read once per process and checked at every tick."""

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import psutil

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, links
    r"|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
)
_LONGEST = 2000
"""Characters of a command line that are kept: some programs carry whole scripts in theirs."""

STATE_EVERY = 5
"""Ticks after which a process is looked at closely again: a zombie keeps its pid and all else."""

GONE = "no such process here"
ENDED = "ended, its memory is still held"
ZOMBIE = "zombie: ended, not yet reaped"
HIDDEN = "hidden from this user"


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


@dataclass(frozen=True, slots=True)
class _Known:
    """A process that was looked at before."""

    inode: int | None
    """Of /proc/PID: another process under the same pid has another one."""
    start_ticks: int
    facts: ProcessFacts
    zombie: bool = False

    def answer(self) -> ProcessFacts:
        return replace(self.facts, note=ZOMBIE) if self.zombie else self.facts


class ProcessDirectory:
    """Facts about the processes that hold GPU memory. Not for several threads.

    At every tick one ``stat`` call makes sure that a pid is still the same process; every few ticks its state is read
    too, which costs several times as much.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._this_tick: dict[int, ProcessFacts] = {}
        self._users: dict[int, str] = {}
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
        self._tick += 1

    def _look_up(self, pid: int) -> ProcessFacts:
        known = self._known.get(pid)
        inode = _inode(pid)
        if known is not None and known.inode == inode and (pid + self._tick) % STATE_EVERY:
            return known.answer()
        ticks, state = _start_and_state(pid)
        if state in {"gone", "hidden"}:
            if known is not None:
                return replace(known.facts, note=ENDED)
            return ProcessFacts(note=GONE if state == "gone" else HIDDEN)
        facts = known.facts if known is not None and known.start_ticks == ticks else None
        if facts is None:
            facts = self._read(pid)
            if facts is None or _inode(pid) != inode:
                return ProcessFacts(note=GONE)  # it ended, or its pid was reused, while it was read
        known = self._known[pid] = _Known(inode, ticks, facts, state == "zombie")
        return known.answer()

    def _read(self, pid: int) -> ProcessFacts | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                return ProcessFacts(
                    start_time=process.create_time(),
                    user=_allowed(lambda: self._user(process.uids().real)),
                    name=_allowed(lambda: one_line(process.name())),
                    command=_allowed(lambda: one_line(" ".join(process.cmdline()))),
                )
        except psutil.Error:
            return None

    def _user(self, uid: int) -> str:
        """The user's name; looked up once, as the answer may come over the network."""
        if uid not in self._users:
            try:
                self._users[uid] = one_line(pwd.getpwuid(uid).pw_name) or str(uid)
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]


def one_line(text: str) -> str | None:
    """Text of a stranger made safe for a terminal: escape sequences and control characters out; None when empty."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in _ESCAPES.sub("", text))
    text = " ".join(text.split())
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…") or None


def _allowed(read: Callable[[], str | None]) -> str | None:
    """A field that may be forbidden, or have gone with the process's memory (zombies have no command line)."""
    try:
        return read()
    except (psutil.AccessDenied, psutil.ZombieProcess):
        return None


def _inode(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_ino  # noqa: PTH116 - Path costs more than the call itself, 500 times a tick
    except OSError:
        return None


def _start_and_state(pid: int) -> tuple[int, Literal["alive", "zombie", "hidden", "gone"]]:
    """Start time in clock ticks since boot, which with the pid identifies a process, and whether it lives.

    proc(5), fields 3 and 22 of ``stat``.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except PermissionError:
        return 0, "hidden"
    except OSError:
        return 0, "gone"
    try:
        line = os.read(descriptor, 1024)
    except OSError:  # it ended just now
        return 0, "gone"
    finally:
        os.close(descriptor)
    after_name = line[line.rfind(b")") + 2 :].split(None, 20)  # the name may itself hold blanks and parentheses
    return int(after_name[19]), "zombie" if after_name[0] in b"ZX" else "alive"
