"""Everything about one process that this user may read: command, environment, files, parents, limits. No secrets."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common import CannotTellError, InputError, displayed_arguments, displayed_data

from ..container_info import container_info
from ..open_files import open_files
from ..plain_text import displayed_line, sanitize_line
from ..process_info import read_process
from ..process_origin import ancestor_pids
from .process_limits import read_cgroup, read_limits
from .slurm_job import with_job_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..process_info import ProcessInfo
    from .process_limits import CgroupFacts, Limit

_DELETED = " (deleted)"
_STATUS_SIZE = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_RAM_FIELDS = {
    "VmRSS": "resident",
    "RssAnon": "own",
    "RssFile": "files",
    "RssShmem": "shared",
    "VmHWM": "peak",
    "VmSwap": "swap",
    "VmLck": "locked",
}
"""Sizes in ``/proc/PID/status`` and their names here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A file, folder or device that a process has open."""

    path: str
    descriptors: int = 1
    deleted: bool = False
    """It has no name any more, and its space is freed when it is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A process among the ancestors of another."""

    pid: int
    user: str | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDetails:
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
    limits: tuple[Limit, ...] | None
    ram: Mapping[str, int]
    """Bytes by what they are: ``resident`` = ``own`` + ``files`` + ``shared``; ``peak``, ``swap``, ``locked``."""
    cpus: int | None
    """Processors that it may run on."""
    files: tuple[OpenFile, ...] | None
    other_descriptors: Mapping[str, int]
    """Number of open descriptors that are no files: ``sockets``, ``pipes``, ``others``."""


def read_details(pid: int, start_time: float | None = None) -> ProcessDetails:
    """Read everything about a process; takes milliseconds, and longer if it has thousands of open files.

    Args:
        pid: of the process.
        start_time: Unix seconds, if it was seen before: pids are reused.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is hidden, a zombie, or another process than before.
    """
    info = read_process(pid, start_time=start_time, cut=True)
    files, others = _open_files(pid)
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
        limits=read_limits(pid),
        ram=_ram(pid),
        cpus=_cpus(pid),
        files=files,
        other_descriptors=others,
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


def _ram(pid: int) -> dict[str, int]:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    sizes = dict(_STATUS_SIZE.findall(status))
    return {name: int(sizes[field]) * 1024 for field, name in _RAM_FIELDS.items() if field in sizes}


def _cpus(pid: int) -> int | None:
    try:
        return len(os.sched_getaffinity(pid))
    except (OSError, AttributeError):
        return None


def _open_files(pid: int) -> tuple[tuple[OpenFile, ...] | None, dict[str, int]]:
    """Return the open files by path, devices last, and the number of other descriptors by kind."""
    paths: Counter[str] = Counter()
    others: Counter[str] = Counter()
    try:
        for _, target in open_files(pid):
            if target.startswith("/"):
                paths[target] += 1
            else:
                others[{"socket": "sockets", "pipe": "pipes"}.get(target.partition(":")[0], "others")] += 1
    except OSError:
        return None, {}
    found = [
        OpenFile(
            path=displayed_line(path.removesuffix(_DELETED)),
            descriptors=count,
            deleted=path.endswith(_DELETED),
        )
        for path, count in paths.items()
    ]
    found.sort(key=lambda file: (file.path.startswith("/dev/"), file.path))
    return tuple(found), dict(others)
