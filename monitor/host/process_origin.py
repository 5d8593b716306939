"""How a process came to be, as far as its odd behaviour on a GPU can be understood by that."""

import re
from dataclasses import dataclass
from pathlib import Path

from .processes import boot_time
from .processes import start_time as started

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""What launchers call a process's number; the first that is there counts (Lightning's children have the last alone)."""
_INIT = ("systemd", "init")
"""Who takes in processes whose parent has ended; in a container the first process starts its program itself."""
_LONGEST_LINE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOrigin:
    """What was true of a process when it was first looked at closely."""

    ancestors: tuple[int, ...] = ()
    """Its parent's pid, its parent's parent's, and so on, without the first process of all."""
    rank: int | None = None
    """Its number among the processes of a job; None: it has none, or its environment is hidden."""
    environment: int | None = None
    """The same number for two processes that began with the same environment, as a fork does; None: hidden."""
    on_mig: bool = False
    """It takes a part of a GPU, which others may share."""
    orphan: bool = False
    """Whoever started it has ended, it has no terminal, and no service manager keeps it."""


def read_origin(pid: int, start_time: float | None) -> ProcessOrigin | None:
    """Where a process comes from; None where there is none, or another one by now.

    Args:
        pid: of the process.
        start_time: Unix seconds.
    """
    stat = _stat(pid)
    if not stat or start_time is None or abs(started(int(stat[19]), booted=boot_time()) - start_time) > 0.05:
        return None
    environ = _environ(pid)
    block = None if environ is None else hash(frozenset(environ.items()))
    facts = environ or {}
    return ProcessOrigin(
        ancestors=ancestor_pids(pid),
        rank=next((int(facts[name]) for name in _RANKS if _NUMBER.fullmatch(facts.get(name, ""))), None),
        environment=block,
        on_mig=facts.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-"),
        orphan=_is_orphan(pid),
    )


def ancestor_pids(pid: int) -> tuple[int, ...]:
    """A process's parent's pid, its parent's parent's, and so on, without the first process of all."""
    found: list[int] = []
    while (stat := _stat(pid)) and len(found) < _LONGEST_LINE:
        pid = int(stat[1])
        if pid <= 1:
            break
        found.append(pid)
    return tuple(found)


def _is_orphan(pid: int) -> bool:
    stat = _stat(pid)
    if not stat or stat[4] != "0":  # a terminal
        return False
    return _text(f"/proc/{int(stat[1])}/comm").strip() in _INIT and not _text(f"/proc/{pid}/cgroup").rstrip().endswith(
        ".service"
    )


def _stat(pid: int) -> list[str]:
    """The fields of proc(5)'s ``stat`` from the third on; empty for a process that is gone."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields if len(fields) > 4 and _NUMBER.fullmatch(fields[1]) else []


def _environ(pid: int) -> dict[str, str] | None:
    block = _text(f"/proc/{pid}/environ")
    if not block:
        return None
    pairs = (line.partition("=") for line in block.split("\0") if line)
    return {name: value for name, _, value in pairs}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
