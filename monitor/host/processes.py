"""User, name, command line and start time of the processes on the GPUs, read once per process and checked each tick."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vramtop.estimator.common.limits import PROCESS_COMMAND_LINE, PROCESS_ENVIRONMENT, Limit, LimitError
from vramtop.estimator.common.secrets import displayed_arguments

from .plain_text import displayed_line, sanitize_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..snapshot.snapshot import ProcessKey

# Process identity: a pid together with its start time, since the system reuses pids. Reads ``/proc``, no psutil.


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MAX_START_DIFFERENCE_SECONDS = 0.5 / _TICKS_PER_SECOND
"""Start times are counted in clock ticks: half a tick is rounding, a whole one is another process."""
HOST_PID_NAMESPACE = 0xEFFF_FFFC
"""Inode of the machine's own pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h)."""
_MAX_STAT_BYTES = 1024
_REAL_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessStat:
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
    """Return the Unix seconds at which this machine was booted; start times are counted from there."""
    with Path("/proc/stat").open("rb") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(b"btime"))


def read_stat(pid: int) -> ProcessStat | None:
    """Return what ``/proc/PID/stat`` contains; None if the process has ended or may not be read."""
    try:
        return load_stat(pid)
    except OSError:
        return None


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


def real_uid(status: bytes) -> int | None:
    """Return the real user id from the content of ``/proc/PID/status``."""
    found = _REAL_UID.search(status)
    return int(found[1]) if found else None


def namespace_pids(pid: int) -> tuple[int, ...]:
    """Return a process's pids from the outermost visible pid namespace to its own (``NSpid``); empty if hidden."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [str(pid)])
    return tuple(int(number) for number in found if len(number) < 11 and number.isdecimal())


def start_time_of(pid: int) -> float | None:
    """Return the Unix seconds at which a process of this machine started; None if it has ended or is hidden."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_time(boot_time())


# The Slurm job, Kubernetes pod or container that a process runs in, from its cgroup and its environment.


_CONTAINERS = (
    ("pod", re.compile(r"kubepods[^ ]*?pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")),
    ("Docker container", re.compile(r"/docker[-/]([0-9a-f]{12})[0-9a-f]{52}")),
    ("Podman container", re.compile(r"/libpod-([0-9a-f]{12})[0-9a-f]{52}")),
    ("container", re.compile(r"/(?:cri-containerd-|crio-)([0-9a-f]{12})[0-9a-f]{52}")),
)
"""Kinds of containers with the pattern of their cgroups, in order of preference."""
_POD_LOGS = Path("/var/log/pods")
"""On the node: a folder ``NAMESPACE_NAME_UID`` for each pod (kubelet, ``BuildPodLogsDirectory``)."""
_SLURM = re.compile(r"/job_(\d+)(?:/step_([^/\s]+))?")


def container_root(pid: int) -> Path | None:
    """Return the root folder of a process in another mount namespace, as it is reached from here; None: it is ours."""
    try:
        theirs = Path(f"/proc/{pid}/ns/mnt").readlink()
        ours = Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return None
    return None if theirs == ours else Path(f"/proc/{pid}/root")


def is_own_process(pid: int) -> bool:
    """Return True if this user started the process; another user's interpreter must never be run, least of all by root.

    All of its user ids count: a setuid program has its owner's, but command line and folder of the user who started it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    return set(uids) == {str(os.geteuid())}


def container_info(pid: int, environ: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return descriptions, outermost first: ``Slurm job 4711 step 0 (sft-llama)``, ``pod 12ab...``.

    Args:
        pid: of the process.
        environ: its environment; None: hidden.

    Returns:
        An empty tuple if it runs directly on the machine.
    """
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cgroup = ""
    return (*_slurm_job(cgroup, environ or {}), *_container(cgroup, environ or {}))


def _slurm_job(cgroup: str, environ: Mapping[str, str]) -> list[str]:
    found = _SLURM.search(cgroup) if "slurm" in cgroup else None
    number = found[1] if found else environ.get("SLURM_JOB_ID")
    if not number:
        return []
    step = f" step {found[2]}" if found and found[2] else ""
    name = environ.get("SLURM_JOB_NAME")
    return [f"Slurm job {number}{step}{f' ({name})' if name else ''}"]


def _container(cgroup: str, environ: Mapping[str, str]) -> list[str]:
    for kind, pattern in _CONTAINERS:
        if found := pattern.search(cgroup):
            number = found[1].replace("_", "-")
            # a pod's host name is its own name, unless it uses the node's network
            name = _pod_name(number) or environ.get("HOSTNAME") if kind == "pod" else None
            return [f"{kind} {name or number}"]
    return []


def _pod_name(uid: str) -> str | None:
    """Return the pod of an id as ``NAMESPACE/NAME``; None: this is not its node, or its folder may not be read."""
    try:
        with os.scandir(_POD_LOGS) as folders:
            found = next((folder.name for folder in folders if folder.name.endswith(f"_{uid}")), None)
    except OSError:
        return None
    namespace, _, name = found.removesuffix(f"_{uid}").partition("_") if found else ("", "", "")
    return f"{namespace}/{name}" if namespace and name else None


STATE_INTERVAL_TICKS = 5
"""Ticks after which a process's state is read again: a zombie keeps its pid and everything else."""

_MAX_FILE_BYTES = 2**16
"""Read of each file: a command line may be megabytes long."""
_KERNEL_NAME_BYTES = 15
"""The kernel cuts process names to this length."""

GONE_NOTE = "not visible from here"
HIDDEN_NOTE = "its /proc may not be read"
ENDED_NOTE = "ended, its memory is still held"
ZOMBIE_NOTE = "zombie: ended, not yet reaped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
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


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """A process that was read in an earlier tick."""

    inode: int
    """Inode of ``/proc/PID``: another process with the same pid has another one."""
    stat: ProcessStat
    facts: ProcessFacts

    def current_facts(self) -> ProcessFacts:
        return replace(self.facts, note=ZOMBIE_NOTE) if self.stat.is_zombie else self.facts


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
        name = displayed_line(_full_name(os.fsdecode(stat.thread_name.partition(b"(")[2]), arguments))
        return ProcessFacts(
            start_time=stat.start_time(self._boot_time),
            user=None if uid is None else self._user(uid),
            name=name or None,
            command=_command_line(arguments),
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


def _runs_in(pid: int) -> str | None:
    try:
        block = os.fsdecode(_read_file(f"/proc/{pid}/environ") or b"")
    except OSError:  # another user's: the cgroup says which job it is
        block = ""
    environ = {name: value for name, _, value in (line.partition("=") for line in block.split("\0"))}
    return displayed_line(next(iter(container_info(pid, environ)), None)) or None


def _command_line(arguments: str) -> str | None:
    """Return the arguments in one line; sanitized before secrets are masked: escape sequences could hide their form."""
    plain = [sanitize_line(argument, cut=False) or "" for argument in arguments.split("\0")]
    return sanitize_line(" ".join(displayed_arguments(plain)))


def _full_name(name: str, arguments: str) -> str:
    """Return the program's full name where the kernel has cut it."""
    first, *others = arguments.split("\0")
    program = (first if others else first.partition(" ")[0]).rpartition("/")[2]
    return program if len(os.fsencode(name)) >= _KERNEL_NAME_BYTES and program.startswith(name) else name


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


# Command line and environment of a process, which may be another user's: each is read up to a limit.


def read_command_line(pid: int, *, cut: bool = False) -> list[str]:
    """Return a process's arguments; empty: it is part of the kernel, a zombie, or just starting.

    Args:
        pid: of the process.
        cut: return the beginning of what is too long, and say so at its end.

    Raises:
        LimitError: it is too long.
        OSError: it is hidden, or the process has ended.
    """
    text, error = _read(pid, "cmdline", PROCESS_COMMAND_LINE, cut=cut)
    separator = "\0" if text.endswith("\0") or error else " "  # a title that a program has given itself
    arguments = text.removesuffix(separator).split(separator) if text else []
    if separator == "\0" and len(arguments) == 1 and not error:
        arguments = arguments[0].split(" ")
    return [*arguments, *_note(error)]


def read_environ(pid: int, *, cut: bool = False) -> dict[str, str]:
    """Return the environment with which a process's program started.

    Args:
        pid: of the process.
        cut: return the beginning of what is too long, and say so at its end.

    Raises:
        LimitError: it is too long.
        OSError: it is hidden, or the process has ended.
    """
    text, error = _read(pid, "environ", PROCESS_ENVIRONMENT, cut=cut)
    pairs = (line.partition("=") for line in text.split("\0"))
    return {**{name: value for name, is_set, value in pairs if name and is_set}, **dict.fromkeys(_note(error), "")}


def _read(pid: int, name: Literal["cmdline", "environ"], limit: Limit, *, cut: bool) -> tuple[str, LimitError | None]:
    """Return the strings in a file of ``/proc``, and what was too much if they are cut."""
    most_bytes, most = limit.bytes or 0, limit.items or 0
    data, error = b"", None
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        while len(data) <= most_bytes and (part := os.read(descriptor, most_bytes)):
            data += part
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        data, error = data[:most_bytes], limit.too_large()
    if data.count(b"\0") > most:
        data, error = (
            b"\0".join(data.split(b"\0", most)[:most]),
            limit.too_many("arguments" if name == "cmdline" else "variables"),
        )
    if error is not None and not cut:
        raise error
    return data.decode("utf-8", "replace"), error


def _note(error: LimitError | None) -> list[str]:
    return [f"… ({error}; the rest is not read)"] if error else []


# Origin of a process: ancestors, rank and environment at its start, which explain unusual behaviour on a GPU.


_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Environment variables in which launchers give a rank; the first that is set counts (Lightning's children have only
the last one)."""
_INIT_PROGRAMS = ("systemd", "init")
"""Programs that adopt processes whose parent has ended; in a container the first process starts its program itself."""
_MAX_ANCESTORS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOrigin:
    """Facts about a process that do not change, or were true when its origin was read."""

    ancestors: tuple[int, ...] = ()
    """Pids of its parent, its parent's parent and so on, without the first process of the machine."""
    rank: int | None = None
    """Its rank in a job; None: it has none, or its environment is hidden."""
    environment: int | None = None
    """Hash of the environment at its start: equal for a process and its forks; None: hidden."""
    on_mig: bool = False
    """It uses a MIG device, which others may share."""
    orphan: bool = False
    """Its parent has ended, it has no terminal, and no service manager runs it."""


def read_origin(pid: int, start_time: float | None) -> ProcessOrigin | None:
    """Return where a process comes from; None if it has ended or another process has its pid.

    Args:
        pid: of the process.
        start_time: Unix seconds.
    """
    stat = read_stat(pid)
    if stat is None or start_time is None or not is_same_start(stat.start_time(boot_time()), start_time):
        return None
    try:
        environ = read_environ(pid)
    except (OSError, LimitError):
        environ = None
    variables = environ or {}
    return ProcessOrigin(
        ancestors=ancestor_pids(pid),
        rank=next((int(variables[n]) for n in _RANK_VARIABLES if _NUMBER.fullmatch(variables.get(n, ""))), None),
        environment=None if environ is None else hash(frozenset(environ.items())),
        on_mig=variables.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-"),
        orphan=_is_orphan(pid),
    )


def ancestor_pids(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's parent, its parent's parent and so on, without the machine's first process."""
    found: list[int] = []
    while (stat := read_stat(pid)) and len(found) < _MAX_ANCESTORS:
        pid = stat.parent or 0
        if pid <= 1:
            break
        found.append(pid)
    return tuple(found)


def _is_orphan(pid: int) -> bool:
    stat = read_stat(pid)
    if stat is None or stat.terminal != 0:
        return False
    if _read_text(f"/proc/{stat.parent or 0}/comm").strip() not in _INIT_PROGRAMS:
        return False
    return not _read_text(f"/proc/{pid}/cgroup").rstrip().endswith(".service")


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Files that a process has open, read through ``/proc/PID/fd``.


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
