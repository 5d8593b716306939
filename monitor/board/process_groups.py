"""Process groups: the rows of a board that belong to one run or to one program, for tables of runs, not ranks.

Processes of unknown jobs form a group only where it is certain that they belong together: one process on several
GPUs, a process and those that it has started, and processes of one program and user under one parent that is a
program itself. A shell, a service manager or a job queue starts things that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..host.known_programs import program_path, starts_sessions

if TYPE_CHECKING:
    from vramtop.estimator.job.job import Job

    from ..snapshot.snapshot import ProcessKey
    from .board import Board, ProcessRow, RunRow


GroupKey = tuple[Hashable, ...]
"""Key of a run, program or process, equal on every board."""


def group_processes(board: Board) -> tuple[ProcessGroup, ...]:
    """Return all processes of a board, and the ended ones that are not dismissed, each row in one group."""
    rows = board.processes
    runs: dict[GroupKey, RunRow] = {
        ("run", *run.pids[0]): run
        for run in board.runs  # a single process whose job could not be estimated may be a rank
        if run.rows and (run.budget is not None or len(run.pids) > 1 or run.ended_at is not None)
    }
    by_pid = {row.process.pid: row for row in reversed(rows)}
    run_keys = {pid: key for key, run in runs.items() for pid in run.pids}
    members: dict[GroupKey, list[ProcessRow]] = {key: list(run.rows) for key, run in runs.items()}
    listed = {row.key for run in runs.values() for row in run.rows}
    for row in (*rows, *board.ended_processes):
        if row.key not in listed:
            listed.add(row.key)
            members.setdefault(_group_of(row, by_pid, run_keys), []).append(row)
    return tuple(ProcessGroup(key=key, rows=tuple(found), run=runs.get(key)) for key, found in members.items())


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The rows of one run, of one program's processes, or of a single process; figures are worked out once."""

    key: GroupKey
    rows: tuple[ProcessRow, ...]
    """One per process and GPU: ranks in order, then helper processes; includes ended ones that are not dismissed."""
    run: RunRow | None = None
    """The run, if its job is known."""

    @property
    def job(self) -> Job | None:
        """The job; None: it is not known."""
        if self.run is not None:
            return self.run.job
        return next((row.job for row in self.rows if row.job is not None), None)

    @cached_property
    def process_keys(self) -> tuple[ProcessKey, ...]:
        """Its processes, each once, in order."""
        return tuple(dict.fromkeys(row.process.key for row in self.rows))

    @cached_property
    def present(self) -> tuple[ProcessRow, ...]:
        """The rows of processes that are on their GPU now."""
        return tuple(row for row in self.rows if row.ended_at is None)

    @cached_property
    def is_stale(self) -> bool:
        """True if the figures of a present process are from an earlier reading."""
        readings = {id(row.gpu): row.gpu for row in self.present}
        return any(reading.is_stale for reading in readings.values())

    @property
    def ranks(self) -> tuple[ProcessRow, ...]:
        """The rows that are compared with each other: a run's ranks, without helper processes; otherwise all."""
        if self.run is None:
            return self.rows
        pids = set(self.run.pids)
        return tuple(row for row in self.rows if row.process.key in pids)

    @property
    def ranks_elsewhere(self) -> int:
        """Ranks of the run that are not on this machine, by the world size of its job."""
        return max(0, self.run.job.parallel.processes - len(self.run.pids)) if self.run else 0

    @cached_property
    def used_bytes(self) -> int | None:
        """Memory of all its present processes; those of unknown size are left out. None: no size is known."""
        sizes = [row.process.used_bytes for row in self.present if row.process.used_bytes is not None]
        return sum(sizes) if sizes else None

    @property
    def has_unknown_sizes(self) -> bool:
        """True if a present process is of unknown size: the sum is a lower bound."""
        return any(row.process.used_bytes is None for row in self.present)

    @cached_property
    def highest(self) -> ProcessRow | None:
        """The present rank that holds the most on its GPU; None if no size is known."""
        return max(
            (row for row in self.ranks if row.ended_at is None and row.process.used_bytes is not None),
            key=lambda row: row.process.used_bytes or 0,
            default=None,
        )

    @cached_property
    def spread_bytes(self) -> int | None:
        """Difference between the highest and the lowest present rank; None for one rank or an unknown size."""
        sizes = [row.process.used_bytes for row in self.ranks if row.ended_at is None]
        known = [size for size in sizes if size is not None]
        return max(known) - min(known) if len(known) == len(sizes) > 1 else None

    @property
    def elapsed_seconds(self) -> float | None:
        """Run time of its oldest process; None if unknown."""
        return max((row.elapsed_seconds for row in self.rows if row.elapsed_seconds is not None), default=None)


_MAX_ANCESTORS = 64


def _group_of(row: ProcessRow, by_pid: Mapping[int, ProcessRow], run_keys: Mapping[ProcessKey, GroupKey]) -> GroupKey:
    """Return the group of a process by what started it."""
    for _ in range(_MAX_ANCESTORS):
        process = row.process
        if process.key in run_keys:
            return run_keys[process.key]
        starter = by_pid.get(process.parent) if process.parent else None
        if starter is None or not _has_started(starter, row):
            break
        row = starter
    return _own_key(row)


def _has_started(starter: ProcessRow, row: ProcessRow) -> bool:
    """Return True if one program on a GPU has started another for its own work; desktops start anything."""
    parent, child = starter.process, row.process
    if parent.user != child.user or "desktop" in (starter.kind, row.kind) or parent.pid == child.pid:
        return False
    if parent.start_time is None or child.start_time is None:
        return False
    return parent.start_time <= child.start_time


_STARTS_ANYTHING = frozenset(
    (
        *("bash", "sh", "dash", "zsh", "fish", "ksh", "tcsh", "csh", "nu", "pwsh"),
        *("su", "sudo", "runuser", "anacron", "runsv", "s6-supervise"),
        *("make", "ninja", "parallel", "xargs", "tsp", "nq", "watch", "raylet"),
        *("xterm", "konsole", "kitty", "alacritty", "foot", "wezterm-gui"),
        *("node", "code", "emacs", "vim", "nvim", "kwin_wayland", "sway", "Hyprland"),
    )
)
"""Names of programs whose children need not belong together, besides those that start whole sessions."""
_STARTS_ANYTHING_BEGINNING = "xfce4-terminal"


def _own_key(row: ProcessRow) -> GroupKey:
    process = row.process
    parent = process.parent_name
    if (process.parent or 0) <= 1 or parent is None or process.user is None or row.kind in ("desktop", "unknown"):
        return ("process", *process.key)
    if parent in _STARTS_ANYTHING or parent.startswith(_STARTS_ANYTHING_BEGINNING) or starts_sessions(parent):
        return ("process", *process.key)
    program = row.program_name or program_path(process.name, process.command)
    return ("program", process.parent, process.user, program)
