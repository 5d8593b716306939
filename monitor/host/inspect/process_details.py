"""Everything about one process that this user may read: command, environment, place, parents. No secrets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.secrets import displayed_arguments, displayed_data

from ..cgroup import CGROUP, cpu_limit, read_number
from ..containers import container_info
from ..file_text import file_text
from ..plain_text import displayed_line, sanitize_line
from ..process_info import ProcessInfo, read_process
from ..process_stat import ancestor_pids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_PROC = Path("/proc")


class CgroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The control group of a process; None: no limit, or not visible from here."""

    path: str
    memory_bytes: int | None = None
    """Memory of all processes in the group, page cache included."""
    memory_limit_bytes: int | None = None
    """The lowest limit of the group and those above it."""
    cpu_limit: float | None = None
    """Processors, likewise."""
    tasks_limit: int | None = None
    """Processes and threads, likewise."""


def read_cgroup(pid: int, root: Path = CGROUP, proc: Path = _PROC) -> CgroupFacts | None:
    """Return the control group of a process, with limits where groups are of version 2; None if it may not be read.

    Args:
        pid: of the process.
        root: where control groups are mounted.
        proc: where processes are.
    """
    lines = file_text(proc / str(pid) / "cgroup").splitlines()
    paths = {names: path for _, names, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    if not paths:
        return None
    parts = [part for part in paths.get("", "/").split("/") if part not in ("", "..")]
    folders = [root.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]
    named = [path for path in paths.values() if path != "/"]
    return CgroupFacts(
        path=named[0] if named else "/",
        memory_bytes=read_number(folders[0] / "memory.current"),
        memory_limit_bytes=_least(read_number(folder / "memory.max") for folder in folders),
        cpu_limit=_least(cpu_limit(folder) for folder in folders),
        tasks_limit=_least(read_number(folder / "pids.max") for folder in folders),
    )


_Number = TypeVar("_Number", int, float)


def _least(numbers: Iterable[_Number | None]) -> _Number | None:
    return min((number for number in numbers if number is not None), default=None)


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """A process among the ancestors of another."""

    pid: int
    user: str | None
    command: str


class ProcessDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One process as it was at one moment; None: hidden from this user. All texts are one line without secrets."""

    pid: int
    time: float
    """Unix seconds at which it was read."""
    user: str | None
    arguments: tuple[str, ...]
    """Its whole command line."""
    folder: str | None
    """Its working directory."""
    program: str | None
    """Path of the program."""
    environment: Mapping[str, str] | None
    """Environment as it was when the program started."""
    parents: tuple[Parent, ...]
    """Its parent, its parent's parent and so on."""
    containers: tuple[str, ...]
    """The Slurm job, pod or container that it runs in, outermost first."""
    cgroup: CgroupFacts | None


def read_details(pid: int, start_time: float | None = None) -> ProcessDetails:
    """Read everything about a process; takes milliseconds.

    Args:
        pid: of the process.
        start_time: Unix seconds, if it was seen before: pids are reused.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is hidden, a zombie, or another process than before.
    """
    info = read_process(pid, start_time=start_time, cut=True)
    return ProcessDetails(
        pid=pid,
        time=time.time(),
        user=info.user,
        arguments=_plain_arguments(info.argv),
        folder=_plain(info.cwd),
        program=_plain(info.exe),
        environment=_environment(info),
        parents=tuple(parent for each in ancestor_pids(pid) if (parent := _parent(each))),
        containers=container_info(pid, info.environ),
        cgroup=read_cgroup(pid),
    )


def _parent(pid: int) -> Parent | None:
    try:
        info = read_process(pid, cut=True)
    except (InputError, CannotTellError):  # it has just ended, or is hidden
        return None
    return Parent(pid=pid, user=info.user, command=" ".join(_plain_arguments(info.argv)))


def _plain_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """Return arguments without control characters and secrets; the former first, as they could hide the latter."""
    return tuple(displayed_arguments([sanitize_line(argument, cut=False) or "" for argument in argv]))


def _plain(path: Path | None) -> str | None:
    return None if path is None else displayed_line(str(path))


def _environment(info: ProcessInfo) -> dict[str, str] | None:
    if info.environ is None:
        return None
    plain = {sanitize_line(name) or "": sanitize_line(value) or "" for name, value in info.environ.items()}
    shown = displayed_data(plain)
    return {str(name): str(value) for name, value in shown.items()} if isinstance(shown, dict) else {}
