"""Anomaly on a GPU, and the context that the rules search for anomalies."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from ..snapshot.snapshot import GpuProcess, Snapshot
from .idleness import IdleTracker
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
