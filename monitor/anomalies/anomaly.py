"""One odd thing on a GPU, and all that a rule may look at to find it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..host.idleness import IdleTracker
from ..host.process_origin import ProcessOrigin
from ..snapshot.snapshot import GpuProcess, Snapshot

AnomalyKind = Literal["helpers", "shared", "strays", "forgotten", "ended", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """Something that a person would want to know."""

    kind: AnomalyKind
    gpu_index: int
    pids: tuple[int, ...]
    """The processes that are odd; empty for memory that no process is seen to hold."""
    about: tuple[int, ...] = ()
    """Other processes that it concerns: whose helpers they are, whose GPU it is."""
    held_bytes: int
    """What they hold on this GPU."""
    sentence: str
    """What is odd, by name."""
    advice: str
    """What to do about it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """The same for the same anomaly at another time."""
        return self.kind, self.gpu_index, self.about if self.kind in ("helpers", "strays") else self.pids

    def concerns(self, pids: Iterable[int]) -> bool:
        """Whether it has to do with one of these processes."""
        return not {*self.pids, *self.about}.isdisjoint(pids)

    def to_json(self) -> dict[str, object]:
        """As ``vramtop --once --json`` has it."""
        return {
            "kind": self.kind,
            "gpu": self.gpu_index,
            "pids": list(self.pids),
            "about": list(self.about),
            "held_bytes": self.held_bytes,
            "sentence": self.sentence,
            "advice": self.advice,
        }


@dataclass(slots=True)
class RuleContext:
    """One snapshot, and what else is known of its processes; the rules look at this."""

    snapshot: Snapshot
    live: bool
    """The processes are those of this machine, now: more can be found out about them."""
    viewer: str | None
    """The user for whom vramtop runs."""
    idle: IdleTracker
    origin_of: Callable[[GpuProcess], ProcessOrigin | None]
    homes: dict[int, int]
    """By pid, the GPU on which a process holds the most."""
    processes: dict[int, GpuProcess]
    """By pid, as it is on its home."""

    def age_seconds(self, process: GpuProcess) -> float:
        """How long it has been running; 0 where that is not known."""
        return 0.0 if process.start_time is None else max(0.0, self.snapshot.time - process.start_time)

    def ancestors(self, process: GpuProcess) -> tuple[int, ...]:
        """The pids of its parent, its parent's parent, and so on, as far as they are known."""
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
    """``process 4711``, ``processes 4711, 4712 and 5 more``."""
    shown = ", ".join(str(pid) for pid in pids[:3])
    rest = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
    return f"process{'es' * (len(pids) > 1)} {shown}{rest}"
