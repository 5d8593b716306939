"""Everything about one process that this user may read: command, environment, place, parents. No secrets."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.secrets import displayed_arguments, displayed_data
from vramtop.estimator.common.trust import find_program

from ..plain_text import displayed_line, sanitize_line
from ..process_info import read_process
from ..processes import ancestor_pids, container_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..process_info import ProcessInfo

_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_NO_LIMIT_BYTES = 2**60
"""Version 1 of control groups writes a number of this order where there is no limit."""


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


def read_cgroup(pid: int, root: Path = _CGROUPS, proc: Path = _PROC) -> CgroupFacts | None:
    """Return the control group of a process; None if it may not be read, or there are none.

    Args:
        pid: of the process.
        root: where control groups are mounted.
        proc: where processes are.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {names: path for _, names, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    by_controller = {name: path for names, path in paths.items() for name in names.split(",")}
    memory = _folders(root, "memory", by_controller)
    cpu = _folders(root, "cpu", by_controller)
    tasks = _folders(root, "pids", by_controller)
    named = [path for path in (by_controller.get("memory"), by_controller.get("")) if path and path != "/"]
    if not paths:
        return None
    own = memory[:1]
    return CgroupFacts(
        path=named[0] if named else "/",
        memory_bytes=_least(own, "memory.current", "memory.usage_in_bytes"),
        memory_limit_bytes=_least(memory, "memory.max", "memory.limit_in_bytes"),
        cpu_limit=min(_cpu_limits(cpu), default=None),
        tasks_limit=_least(tasks, "pids.max"),
    )


def _folders(root: Path, controller: str, paths: dict[str, str]) -> list[Path]:
    """Return the folder of a control group and those above it, from version 1 if it has the controller."""
    first = controller in paths and (root / controller).is_dir()
    top = root / controller if first else root
    parts = [part for part in paths.get(controller if first else "", "/").split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def _least(folders: list[Path], *names: str) -> int | None:
    """Return the lowest number in any of these files; None if there is none."""
    numbers = [_number(text) for folder in folders for name in names if (text := _text(folder / name))]
    return min((number for number in numbers if number is not None and number < _NO_LIMIT_BYTES), default=None)


def _cpu_limits(folders: list[Path]) -> Iterator[float]:
    for folder in folders:
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 25 else None


# The name of a Slurm job whose processes hide their environment: as ``scontrol show job`` says.


_UNNAMED = re.compile(r"Slurm job (\d+)( step \S+)?")
_FIELDS = re.compile(r"JobName=(.*?) UserId=([^( ]+)")
"""A name may contain spaces; the user stands behind it, with the uid in parentheses."""
_SECONDS = 5


def with_job_names(places: Iterable[str]) -> tuple[str, ...]:
    """Return where a process runs, with the names and owners of Slurm jobs that have no name; asks the controller.

    Args:
        places: descriptions of ``container_info``.
    """
    return tuple(_named(place) for place in places)


def _named(place: str) -> str:
    found = _UNNAMED.fullmatch(place)
    facts = _FIELDS.search(_ask(found[1])) if found else None
    name = sanitize_line(f"{facts[1]}, of {facts[2]}") if facts else None
    return f"{place} ({name})" if name else place


def _ask(job: str) -> str:
    """Return the record of a job in one line; empty: there is no scontrol, no such job any more, or no answer."""
    program = find_program("scontrol", os.environ.get("PATH"))
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, "show", "job", job, "-o"],
            capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="replace") if answer.returncode == 0 else ""


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
    start_time: float
    """Unix seconds."""
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
        start_time=info.start_time,
        user=info.user,
        arguments=_plain_arguments(info.argv),
        folder=_plain(info.cwd),
        program=_plain(info.exe),
        environment=_environment(info),
        parents=tuple(parent for each in ancestor_pids(pid) if (parent := _parent(each))),
        containers=with_job_names(container_info(pid, info.environ)),
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
