"""Anomaly on a GPU, and what the rules that search for anomalies know: processes, and how long each has been idle."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from ..snapshot.snapshot import GpuProcess, ProcessKey, Snapshot
from .process_origin import ProcessOrigin

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
