"""One process as vramtop may read it: command line, environment, folder, interpreter and parent."""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal

import msgspec
import psutil

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.limits import LimitError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed_arguments
from vramtop.estimator.readers.program.launch import Launch
from vramtop.estimator.readers.tools.tool_registry import parse_launch

from .known_programs import SERVERS, KnownProgram, identify
from .process_stat import is_same_start, processes_by_parent, read_command_line, read_environ

UnreadableReason = Literal["no access", "ended", "starting", "unreadable", "not training", "server", "too long"]
_LOCAL_RANK_OPTION = re.compile(r"--local[-_]rank=\d+$")
_MAX_COMMAND_CHARACTERS = 120
_SHELLS = ("sh", "bash", "zsh", "dash", "fish", "ksh")
_CONTAINER_INITS = ("tini", "tini-static", "dumb-init", "docker-init", "catatonit", "timeout", "env", "nohup")
_SERVER_TITLES = tuple(title for server in SERVERS for title in server.titles)
_MULTIPROCESSING_MODULES = tuple(f"multiprocessing.{name}" for name in ("spawn", "forkserver", "resource_tracker"))


class UnreadableProcessError(CannotTellError):
    """A process cannot be read, or runs nothing that could be a training job.

    Args:
        message: one sentence about it.
        reason: the same in a word or two.
    """

    def __init__(self, message: str, *, reason: UnreadableReason) -> None:
        super().__init__(message)
        self.reason = reason


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process as far as this user may read it; None: hidden."""

    pid: int
    parent: int | None
    start_time: float
    """Unix seconds; with the pid it identifies the process."""
    argv: tuple[str, ...]
    environ: Mapping[str, str] | None
    """Environment as it was when the program started."""
    cwd: Path | None
    exe: Path | None
    user: str | None
    hidden: tuple[str, ...] = ()
    """What could not be read: ``its environment``, ``its folder``."""

    @property
    def launch(self) -> Launch:
        """Its parsed command line, without a launcher's ``--local-rank`` option, which differs between ranks."""
        launch = parse_launch(self.argv)
        return replace(launch, arguments=tuple(each for each in launch.arguments if not _LOCAL_RANK_OPTION.match(each)))

    @property
    def is_helper(self) -> bool:
        """True if multiprocessing started it: its command line says nothing about the job."""
        return any(name in argument for argument in self.argv for name in _MULTIPROCESSING_MODULES)

    @property
    def is_titled(self) -> bool:
        """True if a server has put a title in place of its command line: that of the server says what it runs."""
        return bool(self.argv) and self.argv[0].startswith(_SERVER_TITLES)

    @property
    def known_program(self) -> KnownProgram:
        """The program that its command line names, by the tables of programs."""
        return identify(None, " ".join(self.argv))

    @property
    def is_rank(self) -> bool:
        """True if a launcher started it as one of the ranks of a job."""
        return self.environ is not None and ("RANK" in self.environ or "LOCAL_RANK" in self.environ)

    @property
    def rank_order(self) -> tuple[int, int]:
        """Global and local rank, by which the ranks of a job are sorted; 0 where they are unknown."""
        environ = self.environ or {}
        return parse_rank(environ.get("RANK")) or 0, parse_rank(environ.get("LOCAL_RANK")) or 0

    @property
    def is_spawned(self) -> bool:
        """True if multiprocessing's spawn method started it."""
        return "spawn_main" in " ".join(self.argv)

    @property
    def runs_program(self) -> bool:
        """True if it runs a Python program itself, rather than launching one."""
        launch = self.launch
        return launch.program_name is not None and not (launch.only_launches or self.is_helper or self._is_shell)

    @property
    def is_init(self) -> bool:
        """True for the process that starts a machine's services; a container's may start its only program."""
        name = PurePath(self.argv[0]).name if self.argv else ""
        return self.pid == 1 and not self.launch.launchers and not self._is_shell and name not in _CONTAINER_INITS

    @property
    def _is_shell(self) -> bool:
        return bool(self.argv) and PurePath(self.argv[0].lstrip("-")).name in _SHELLS

    @property
    def command_line(self) -> str:
        """Its command line in one line, without secrets, cut where it is long."""
        line = " ".join(" ".join(displayed_arguments(self.argv)).replace("\0", " ").split())
        return line if len(line) <= _MAX_COMMAND_CHARACTERS else f"{line[:_MAX_COMMAND_CHARACTERS]}..."


def read_process(pid: int, *, start_time: float | None = None) -> ProcessInfo:
    """Read one process.

    Args:
        pid: of the process.
        start_time: Unix seconds, if it was seen before: pids are reused.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is a zombie, hidden, another process than before, or too long.
    """
    try:
        process = psutil.Process(pid)
        started = process.create_time()
        argv, environ = read_command_line(pid), None
        with contextlib.suppress(OSError):
            environ = read_environ(pid)
        if not argv and process.status() == psutil.STATUS_ZOMBIE:
            sentence = f"Process {pid} has ended already (a zombie that its parent has not reaped)."
            raise UnreadableProcessError(sentence, reason="ended")
    except LimitError as error:
        sentence = f"Process {pid} is not read: {error}. Describe its job in a job file."
        raise UnreadableProcessError(sentence, reason="too long") from None
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        raise InputError(f"There is no process {pid} here; it has ended, or lives in another container.") from None
    except (ValueError, OverflowError):
        raise InputError(f"There is no process {pid}; a pid is a positive number.") from None
    except (psutil.AccessDenied, PermissionError):
        sentence = f"Process {pid} is hidden from this user; run vramtop as its owner or as root."
        raise UnreadableProcessError(sentence, reason="no access") from None
    if start_time is not None and not is_same_start(started, start_time):
        sentence = f"Process {pid} is now a different process: the one you meant has ended."
        raise UnreadableProcessError(sentence, reason="ended")
    return _process_info(process, started, argv, environ)


def ancestors(process: ProcessInfo) -> Iterator[ProcessInfo]:
    """Yield its parent, its parent's parent and so on, up to vramtop itself.

    The first process is one of them: in a container it runs the program.
    """
    pid = process.parent
    while pid and pid != os.getpid():
        try:
            parent = read_process(pid)
        except (InputError, CannotTellError):
            return
        yield parent
        pid = parent.parent


def descendants(process: ProcessInfo) -> Iterator[ProcessInfo]:
    """Yield its children and their children, in the order of their pids; not this process and what it has started."""
    children = _TREE.children()
    found, waiting = set[int](), [process.pid]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found - {os.getpid()}
        found |= new
        waiting += new
    for pid in sorted(found - {process.pid}):
        try:
            yield read_process(pid)
        except (InputError, CannotTellError):  # it has just ended
            continue


def remember_process_tree(seconds: float) -> None:
    """Look for children in a tree of processes that may be so old: with thousands of them, reading it takes long."""
    _TREE.max_age_seconds = seconds


class _ProcessTree(msgspec.Struct):
    """The children of all processes, remembered for a while."""

    max_age_seconds: float = 0.0
    _children: Mapping[int, Sequence[int]] = msgspec.field(default_factory=dict)
    _read_at: float = -math.inf

    def children(self) -> Mapping[int, Sequence[int]]:
        if time.monotonic() - self._read_at >= self.max_age_seconds:
            self._children, self._read_at = processes_by_parent(), time.monotonic()
        return self._children


_TREE = _ProcessTree()


def parse_rank(text: str | None) -> int | None:
    """Return the number in a rank or world size variable; None if it is missing or no number."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _process_info(
    process: psutil.Process, started: float, argv: list[str], environ: dict[str, str] | None
) -> ProcessInfo:
    hidden = [] if environ is not None else ["its environment"]

    def read(what: str, name: str) -> object | None:
        try:
            value: object = getattr(process, name)()
        except (psutil.Error, OSError):
            hidden.append(what)
            return None
        return value

    cwd = read("its folder", "cwd")
    exe, user, parent = read("its interpreter", "exe"), read("its user", "username"), read("its parent", "ppid")
    return ProcessInfo(
        pid=process.pid,
        parent=parent if isinstance(parent, int) else None,
        start_time=started,
        argv=tuple(argv),
        environ=environ,
        cwd=_reachable(process.pid, cwd) if isinstance(cwd, str) and cwd else None,
        exe=Path(exe) if isinstance(exe, str) and exe else None,
        user=user if isinstance(user, str) else None,
        hidden=tuple(hidden),
    )


def _reachable(pid: int, cwd: str) -> Path:
    """Return a working folder; by way of ``/proc`` if its name is not UTF-8."""
    is_text = cwd.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == cwd
    return Path(cwd if is_text else f"/proc/{pid}/cwd")
