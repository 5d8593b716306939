"""Anomaly on a GPU, and what the rules that search for anomalies know of processes: origin, and time without work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from vramtop.estimator.common.limits import LimitError

from ..host.kernel_files import file_text
from ..host.process_stat import ancestor_pids, boot_time, is_same_start, read_environ, read_stat
from ..snapshot.snapshot import GpuProcess, ProcessKey, Snapshot

AnomalyKind = Literal["helpers", "shared", "strays", "forgotten", "ended", "unseen"]


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """An unusual use of GPU memory."""

    kind: AnomalyKind
    """`helpers`: data loader workers hold a CUDA context; `shared`: ranks share a GPU; `strays`: a rank uses another
    rank's GPU; `forgotten`: idle processes of your own; `ended`, `unseen`: memory of no visible process."""
    gpu: int
    """NVML index of the GPU."""
    pids: tuple[int, ...]
    """The processes; empty: memory of no visible process."""
    about: tuple[int, ...] = ()
    """Other processes that it concerns: the owner of helpers, the rank whose GPU it is."""
    held_bytes: int
    """Bytes that these processes hold on this GPU."""
    sentence: str
    """The anomaly in words."""
    advice: str
    """What to do about it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that stays the same while the anomaly lasts."""
        return self.kind, self.gpu, self.about if self.kind in ("helpers", "strays") else self.pids

    def concerns(self, pids: Iterable[int]) -> bool:
        """Return True if it involves one of these processes."""
        return not {*self.pids, *self.about}.isdisjoint(pids)


_MAX_IDLE_CPU_SHARE = 0.002
"""Share of one core: a process that uses less is idle. An idle Jupyter kernel uses 0.0002 (ipykernel 7.4: 28 ms in two
minutes); a process that waits for its GPU spins, unless it asked CUDA not to (cudaDeviceScheduleAuto)."""
_WINDOW_SECONDS = 60.0
_MIN_AGE_SECONDS = 3600.0
_STARTUP_CPU_SECONDS = 120.0
"""Processor time that imports, CUDA and loading a model may take: a process with less has done little else."""


class _Usage(msgspec.Struct):
    """Processor time of one process as it was observed."""

    window_start: float
    """Unix seconds."""
    window_start_cpu_seconds: float
    idle_since: float
    """Unix seconds."""
    worked: bool = False
    """It was seen to work."""


class IdleTracker:
    """Tracks over snapshots how long each process has been idle: the time since it was last seen to work."""

    def __init__(self) -> None:
        self._usage: dict[ProcessKey, _Usage] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Record how much processor time each process has used."""
        now = snapshot.time
        current: dict[ProcessKey, _Usage] = {}
        for _, process in snapshot.processes():
            if process.cpu_seconds is None or process.key in current:
                continue
            usage = self._usage.get(process.key) or _Usage(now, process.cpu_seconds, now)
            current[process.key] = usage
            used, window = process.cpu_seconds - usage.window_start_cpu_seconds, now - usage.window_start
            if used > _MAX_IDLE_CPU_SHARE * max(window, _WINDOW_SECONDS):
                usage.idle_since, usage.worked = now, True
            elif window < _WINDOW_SECONDS:
                continue
            usage.window_start, usage.window_start_cpu_seconds = now, process.cpu_seconds
        self._usage = current

    def idle_seconds(self, process: GpuProcess, now: float) -> float | None:
        """Return for how long the process has been idle; None if its processor time is unknown."""
        usage = self._usage.get(process.key)
        return None if usage is None else now - usage.idle_since

    def hardly_ever_worked(self, process: GpuProcess, now: float) -> bool:
        """Return True if an old process has used little more processor time than starting takes."""
        usage = self._usage.get(process.key)
        if usage is None or usage.worked or process.cpu_seconds is None or process.start_time is None:
            return False
        age = now - process.start_time
        return age >= _MIN_AGE_SECONDS and process.cpu_seconds <= min(_MAX_IDLE_CPU_SHARE * age, _STARTUP_CPU_SECONDS)


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


class RuleContext(msgspec.Struct):
    """One snapshot with everything else that the rules know about its processes."""

    snapshot: Snapshot
    live: bool
    """The processes run on this machine now, so more can be read about them."""
    viewer: str | None
    """Name of the user for whom vramtop runs."""
    idle: IdleTracker
    origin_of: Callable[[GpuProcess], ProcessOrigin | None]
    home_gpus: dict[int, int]
    """By pid, the index of the GPU on which a process holds the most memory."""
    processes: dict[int, GpuProcess]
    """By pid, the process as listed on its home GPU."""

    def age_seconds(self, process: GpuProcess) -> float:
        """Return the process's age; 0 if it is unknown."""
        return 0.0 if process.start_time is None else max(0.0, self.snapshot.time - process.start_time)

    def ancestors(self, process: GpuProcess) -> tuple[int, ...]:
        """Return the pids of a process's parent, its parent's parent and so on, as far as they are known."""
        origin = self.origin_of(process)
        if origin is not None:
            return origin.ancestors
        found: list[int] = []
        parent = process.parent
        while parent is not None and parent not in found:
            found.append(parent)
            above = self.processes.get(parent)
            parent = above.parent if above else None
        return tuple(found)


def format_pids(pids: Sequence[int]) -> str:
    """Return the pids in words: ``process 4711``, ``processes 4711, 4712 and 5 more``."""
    shown = ", ".join(str(pid) for pid in pids[:3])
    rest = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
    return f"process{'es' * (len(pids) > 1)} {shown}{rest}"
