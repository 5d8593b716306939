"""Will a job fit: its budget per rank against what the GPUs can give."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vramtop.estimator.budget import Budget
from vramtop.estimator.sizes import format_gib

from .snapshot import Snapshot

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]

_BEST_FIRST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one GPU can give."""

    index: int
    uuid: str | None
    name: str | None
    total_bytes: int | None
    free_bytes: int | None
    """What NVML calls free: never total less used, which would count the driver's reserve in."""
    committed_bytes: int = 0
    """What running jobs have not yet taken of their budgets, and what earlier pending jobs were promised."""

    @property
    def available_bytes(self) -> int | None:
        """Free less committed, not below zero; None when free is unknown."""
        return None if self.free_bytes is None else max(0, self.free_bytes - self.committed_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVerdict:
    """Whether one rank of the job fits on one GPU."""

    room: Room
    verdict: Verdict
    short_bytes: int
    """How much the expected peak lacks; 0 where it fits or nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether the whole job fits, and where."""

    verdict: Verdict
    gpus: tuple[GpuVerdict, ...]
    """Every GPU that was considered, in the order given."""
    placement: tuple[int, ...]
    """Indices of the GPUs for its ranks, the roomiest first; the best there is when it does not fit."""
    margin_bytes: int | None
    """Room left beyond the expected peak on the fullest chosen GPU; negative when it does not fit.

    None when what one of them can give is not known, or there is none."""
    sentence: str
    """The verdict in words."""

    def to_json(self) -> dict[str, Any]:
        """The contract's fields of ``vramtop fit --json`` that concern the GPUs."""
        return {
            "verdict": self.verdict,
            "gpus": [
                {
                    "index": gpu.room.index,
                    "uuid": gpu.room.uuid,
                    "name": gpu.room.name,
                    "free_bytes": gpu.room.free_bytes,
                    "committed_bytes": gpu.room.committed_bytes,
                    "available_bytes": gpu.room.available_bytes,
                    "verdict": gpu.verdict,
                }
                for gpu in self.gpus
            ],
            "placement": list(self.placement),
            "margin_bytes": self.margin_bytes,
        }


def fit(budget: Budget, rooms: Sequence[Room]) -> Fit:
    """Place every rank of the budget's job on a GPU of its own, the roomiest first.

    The budget is the fullest rank's, so a job whose ranks differ (pipeline stages) is judged on the safe side.
    """
    ranks = budget.job.parallel.world_size
    verdicts = tuple(_judge(budget, room) for room in rooms)
    roomiest = sorted(verdicts, key=lambda v: (_BEST_FIRST.index(v.verdict), -(v.room.available_bytes or 0)))
    chosen = roomiest[:ranks]
    if len(chosen) < ranks:
        verdict: Verdict = "does_not_fit"
    else:
        verdict = max((v.verdict for v in chosen), key=_BEST_FIRST.index)
    rooms_left = [v.room.available_bytes for v in chosen]
    known = [available for available in rooms_left if available is not None]
    return Fit(
        verdict=verdict,
        gpus=verdicts,
        placement=tuple(v.room.index for v in chosen),
        margin_bytes=min(known) - budget.peak.device_bytes if known and len(known) == len(chosen) else None,
        sentence=_sentence(verdict, budget, chosen, ranks),
    )


def rooms_of(snapshot: Snapshot, committed: Mapping[int, int], only: Iterable[int] | None = None) -> tuple[Room, ...]:
    """What the GPUs of a snapshot can give.

    Args:
        snapshot: the machine now.
        committed: bytes by GPU index that are spoken for but not yet taken.
        only: indices to consider; all when left out.
    """
    wanted = None if only is None else set(only)
    return tuple(
        Room(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            free_bytes=gpu.free_bytes,
            committed_bytes=committed.get(gpu.index, 0),
        )
        for gpu in snapshot.gpus
        if wanted is None or gpu.index in wanted
    )


def _judge(budget: Budget, room: Room) -> GpuVerdict:
    available = room.available_bytes
    if available is None:
        return GpuVerdict(room=room, verdict="unknown", short_bytes=0)
    short = max(0, budget.peak.device_bytes - available)
    if short:
        return GpuVerdict(room=room, verdict="does_not_fit", short_bytes=short)
    fits = budget.peak.high_bytes <= available
    return GpuVerdict(room=room, verdict="fits" if fits else "tight", short_bytes=0)


def _sentence(verdict: Verdict, budget: Budget, chosen: Sequence[GpuVerdict], ranks: int) -> str:
    need = f"{format_gib(budget.peak.device_bytes)} GiB"
    each = f"{ranks} × {need}" if ranks > 1 else need
    if len(chosen) < ranks:
        return f"needs {ranks} GPUs ({each}), and there {_are(len(chosen))} here"
    where = "GPU " + ", ".join(str(v.room.index) for v in chosen)
    match verdict:
        case "fits":
            return f"needs {each} and fits on {where}"
        case "tight":
            return f"needs {each}: expected to fit on {where}, but may take {format_gib(budget.peak.high_bytes)} GiB"
        case "does_not_fit":
            worst = max(chosen, key=lambda v: v.short_bytes)
            return f"needs {each}; GPU {worst.room.index} is short of {format_gib(worst.short_bytes)} GiB"
        case "unknown":
            return f"needs {each}; how much {where} can give is not known"


def _are(count: int) -> str:
    return {0: "are none", 1: "is 1"}.get(count, f"are {count}")
