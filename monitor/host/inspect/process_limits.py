"""Limits of a process: those of the kernel (``ulimit``), and those of its control group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_LIMIT = re.compile(r"^(?:Max )?(?P<name>.+?)\s{2,}(?P<soft>\S+)\s+(?P<hard>\S+)[ ]*(?P<unit>\w*)\s*$")
_NO_LIMIT_BYTES = 2**60
"""Version 1 of control groups writes a number of this order where there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit of the kernel; None: unlimited."""

    name: str
    """Name as in ``/proc/PID/limits``, without "Max": ``open files``."""
    soft: int | None
    hard: int | None
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFacts:
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


def read_limits(pid: int) -> tuple[Limit, ...] | None:
    """Return the kernel's limits of a process; None if they may not be read."""
    try:
        text = Path(f"/proc/{pid}/limits").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = (_LIMIT.match(line) for line in text.splitlines()[1:])
    return tuple(
        Limit(name=match["name"], soft=_number(match["soft"]), hard=_number(match["hard"]), unit=match["unit"])
        for match in found
        if match
    )


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
