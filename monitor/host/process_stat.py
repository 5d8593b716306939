"""A process in ``/proc``, read without psutil: identity, state, command line, environment and open files.

Its identity is a pid together with its start time, since pids are reused. It may be another user's: each
file is read up to a limit.
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from vramtop.estimator.common.limits import PROCESS_COMMAND_LINE, PROCESS_ENVIRONMENT, Limit

from ..snapshot.snapshot import ProcessKey
from .kernel_files import file_text

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MAX_START_DIFFERENCE_SECONDS = 0.5 / _TICKS_PER_SECOND
"""Start times are counted in clock ticks: half a tick is rounding, a whole one is another process."""
HOST_PID_NAMESPACE = 0xEFFF_FFFC
"""Inode of the machine's own pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h)."""


class ProcessStat(msgspec.Struct, frozen=True):
    """The fields of ``/proc/PID/stat`` (proc_pid_stat(5)) that vramtop uses."""

    start_ticks: int
    """Start time in clock ticks since boot."""
    thread_name: bytes
    """``4711 (python``. Changes when the process executes another program or gives itself another title."""
    state: bytes
    """One letter, such as ``R`` (running), ``T`` (stopped) or ``Z`` (zombie)."""
    parent: int | None
    """Pid of its parent; None also where the parent is in another pid namespace."""
    terminal: int
    """Number of its controlling terminal; 0: none."""
    flags: int
    """The kernel's flags (``PF_*`` of include/linux/sched.h)."""
    cpu_ticks: int
    """Clock ticks in user and in kernel mode."""
    threads: int
    rss_pages: int
    """Its pages in RAM."""

    @property
    def is_zombie(self) -> bool:
        """True if it has ended and its parent has not reaped it yet."""
        return self.state in b"ZX"

    @property
    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        return self.cpu_ticks / _TICKS_PER_SECOND

    def start_time(self, boot_time: float) -> float:
        """Unix seconds, equal to psutil's ``create_time``."""
        return self.start_ticks / _TICKS_PER_SECOND + boot_time


def is_running(key: ProcessKey) -> bool:
    """Return True if a process of this machine still runs; a process that may not be read counts as running.

    Args:
        key: its pid and start time; with a start time of None, any process with this pid counts.
    """
    pid, start_time = key
    try:
        stat = load_stat(pid)
    except PermissionError:
        return True
    except OSError:
        return False
    same = start_time is None or is_same_start(stat.start_time(boot_time()), start_time)
    return same and not stat.is_zombie


def is_same_start(one: float, other: float) -> bool:
    """Return True if two start times in Unix seconds are those of one process."""
    return abs(one - other) <= MAX_START_DIFFERENCE_SECONDS


def boot_time() -> float:
    """Return when this machine booted, in Unix seconds; start times count from there."""
    with Path("/proc/stat").open("rb") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(b"btime"))


def read_stat(pid: int) -> ProcessStat | None:
    """Return what ``/proc/PID/stat`` contains; None if the process has ended or may not be read."""
    try:
        return load_stat(pid)
    except OSError:
        return None


_MAX_STAT_BYTES = 1024


def load_stat(pid: int) -> ProcessStat:
    """Return what ``/proc/PID/stat`` contains.

    Raises:
        PermissionError: the process may not be read.
        OSError: the process has ended.
    """
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        line = os.read(descriptor, _MAX_STAT_BYTES)
    finally:
        os.close(descriptor)
    name, _, others = line.rpartition(b")")  # the name may itself contain blanks and parentheses
    fields = others.split(None, 22)
    return ProcessStat(
        start_ticks=int(fields[19]),
        thread_name=name,
        state=fields[0],
        parent=int(fields[1]) or None,
        terminal=int(fields[4]),
        flags=int(fields[6]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        rss_pages=int(fields[21]),
    )


def processes_by_parent() -> dict[int, list[int]]:
    """Return the pids of all processes that can be seen, by their parents, in the order of the pids."""
    children: dict[int, list[int]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):  # noqa: PTH208 - thousands of them
        stat = read_stat(pid)
        if stat is not None and stat.parent is not None:
            children.setdefault(stat.parent, []).append(pid)
    return children


_REAL_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)


def real_uid(status: bytes) -> int | None:
    """Return the real user id from the content of ``/proc/PID/status``."""
    found = _REAL_UID.search(status)
    return int(found[1]) if found else None


def namespace_pids(pid: int) -> tuple[int, ...]:
    """Return a process's pids from the outermost visible pid namespace to its own (``NSpid``); empty if hidden."""
    status = file_text(Path(f"/proc/{pid}/status"))
    found = _words_of(status, "NSpid") or [str(pid)] if status else []
    return tuple(int(number) for number in found if len(number) < 11 and number.isdecimal())


def start_time_of(pid: int) -> float | None:
    """Return the Unix seconds at which a process of this machine started; None if it has ended or is hidden."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_time(boot_time())


def is_own_process(pid: int) -> bool:
    """Return True if this user started the process; another user's interpreter must never be run, least of all by root.

    All of its user ids count: a setuid program has its owner's, but command line and folder of the user who started it.
    """
    return set(_words_of(file_text(Path(f"/proc/{pid}/status")), "Uid")) == {str(os.geteuid())}


def _words_of(status: str, name: str) -> list[str]:
    return next((line.split()[1:] for line in status.splitlines() if line.startswith(f"{name}:")), [])


_MAX_ANCESTORS = 64


def ancestor_pids(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's parent, its parent's parent and so on, without the machine's first process."""
    found: list[int] = []
    while (stat := read_stat(pid)) and len(found) < _MAX_ANCESTORS:
        pid = stat.parent or 0
        if pid <= 1:
            break
        found.append(pid)
    return tuple(found)


def read_command_line(pid: int) -> list[str]:
    """Return a process's arguments; empty: it is part of the kernel, a zombie, or just starting.

    Raises:
        LimitError: it is too long.
        OSError: it is hidden, or the process has ended.
    """
    text = _read(pid, "cmdline", PROCESS_COMMAND_LINE)
    separator = "\0" if text.endswith("\0") else " "  # a title that a program has given itself
    arguments = text.removesuffix(separator).split(separator) if text else []
    return arguments[0].split(" ") if separator == "\0" and len(arguments) == 1 else arguments


def read_environ(pid: int) -> dict[str, str]:
    """Return the environment with which a process's program started.

    Raises:
        LimitError: it is too long.
        OSError: it is hidden, or the process has ended.
    """
    pairs = (line.partition("=") for line in _read(pid, "environ", PROCESS_ENVIRONMENT).split("\0"))
    return {name: value for name, is_set, value in pairs if name and is_set}


def _read(pid: int, name: Literal["cmdline", "environ"], limit: Limit) -> str:
    """Return the strings in a file of ``/proc``."""
    most_bytes = limit.bytes or 0
    data = b""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        while len(data) <= most_bytes and (part := os.read(descriptor, most_bytes)):
            data += part
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise limit.too_large()
    if data.count(b"\0") > (limit.items or 0):
        raise limit.too_many("arguments" if name == "cmdline" else "variables")
    return data.decode("utf-8", "replace")


MAX_FILES = 20_000
"""Open files that are examined: a process may have a million, at 4 microseconds each."""


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the path in ``/proc`` and the target of each open file, such as ``/dev/nvidia0``.

    Raises:
        OSError: the process has ended, or its files may not be read.
    """
    folder = f"/proc/{pid}/fd"
    for name in islice(os.listdir(folder), MAX_FILES):  # noqa: PTH208 - cheaper, for processes with many files
        path = f"{folder}/{name}"
        try:
            yield path, os.readlink(path)  # noqa: PTH115
        except OSError:  # just closed
            continue
