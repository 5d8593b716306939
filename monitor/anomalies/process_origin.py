"""Origin of a process: ancestors, rank and environment at its start, which explain unusual behaviour on a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.common.limits import LimitError

from ..host.file_text import file_text
from ..host.process_stat import ancestor_pids, boot_time, is_same_start, read_environ, read_stat

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Environment variables in which launchers give a rank; the first that is set counts (Lightning's children have only
the last one)."""
_INIT_PROGRAMS = ("systemd", "init")
"""Programs that adopt processes whose parent has ended; in a container the first process starts its program itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOrigin:
    """Where a process comes from, as it was when this was first read."""

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


def _is_orphan(pid: int) -> bool:
    stat = read_stat(pid)
    if stat is None or stat.terminal != 0:
        return False
    if file_text(Path(f"/proc/{stat.parent or 0}/comm")).strip() not in _INIT_PROGRAMS:
        return False
    return not file_text(Path(f"/proc/{pid}/cgroup")).rstrip().endswith(".service")
