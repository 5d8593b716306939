"""Will a job fit: its budget per rank against what the GPUs can give."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vramtop.estimator.budget import Budget, RankNeed
from vramtop.estimator.sizes import format_gib

from .host_memory import HostRoom, HostVerdict, judge_host
from .snapshot import GpuReading, Snapshot

if TYPE_CHECKING:
    from .serving_fit import Serving

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]

BEST_FIRST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")


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
    closed: str | None = None
    """Why no program can be started there at all, whatever is free: ``is in exclusive-process mode and in use``."""

    reserved_bytes: int = 0
    """What the driver keeps of the total, which CUDA does not count in it; 0 where that is not known."""

    @property
    def available_bytes(self) -> int | None:
        """Free less committed, not below zero, and 0 where it is closed; None when free is unknown."""
        if self.closed:
            return 0
        return None if self.free_bytes is None else max(0, self.free_bytes - self.committed_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVerdict:
    """Whether one rank of the job fits on one GPU."""

    room: Room
    verdict: Verdict
    need_bytes: int
    """The rank's expected peak."""

    @property
    def margin_bytes(self) -> int | None:
        """What is left beyond the expected peak; negative where it does not fit; None where nothing is known."""
        available = self.room.available_bytes
        return None if available is None else available - self.need_bytes

    @property
    def short_bytes(self) -> int:
        """How much the expected peak lacks; 0 where it fits or nothing is known."""
        return max(0, -(self.margin_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether the whole job fits, and where."""

    verdict: Verdict
    gpus: tuple[GpuVerdict, ...]
    """Every GPU that was considered, in the order given."""
    placement: tuple[int, ...]
    """Indices of the GPUs for its ranks, in the order of the ranks; the best there is when it does not fit."""
    margin_bytes: int | None
    """Room left beyond the expected peak on the fullest chosen GPU; negative when it does not fit.

    None when what one of them can give is not known, or there is none."""
    sentence: str
    """The verdict in words."""
    host: HostVerdict | None = None
    """Whether the machine's RAM is enough; None: nobody looked."""
    serving: "Serving | None" = None
    """What vLLM makes of the fullest chosen GPU; None: it does not run the job, or there is no such GPU."""

    @property
    def taken_bytes(self) -> dict[int, int]:
        """What the job would take of each chosen GPU, by its index."""
        needs = {gpu.room.index: gpu.need_bytes for gpu in self.gpus}
        return {index: needs[index] for index in self.placement}

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
                    "closed": gpu.room.closed,
                }
                for gpu in self.gpus
            ],
            "placement": list(self.placement),
            "margin_bytes": self.margin_bytes,
            **({"host": self.host.to_json()} if self.host else {}),
            **({"serving": self.serving.to_json()} if self.serving else {}),
        }


def fit(budget: Budget, rooms: Sequence[Room]) -> Fit:
    """Place every rank of the budget's job on a GPU of its own: the one that needs most on the roomiest.

    Where all ranks fit somehow, they fit so. A GPU that gets no rank is judged by the neediest one.
    """
    if budget.serving is not None:
        from .serving_fit import fit_serving  # it knows this module

        return fit_serving(budget.serving, len(budget.ranks), rooms)
    needs = budget.ranks
    neediest = max(needs, key=lambda need: need.device_bytes)
    judged = _place(needs, rooms)
    verdicts = {room.index: _judge(neediest, room) for room in rooms} | {v.room.index: v for v in judged.values()}
    chosen = [judged[rank] for rank in sorted(judged)]
    if len(chosen) < len(needs):
        verdict: Verdict = "does_not_fit"
    else:
        verdict = max((v.verdict for v in chosen), key=BEST_FIRST.index)
    margins = [v.margin_bytes for v in chosen]
    known = [margin for margin in margins if margin is not None]
    return Fit(
        verdict=verdict,
        gpus=tuple(verdicts[room.index] for room in rooms),
        placement=tuple(v.room.index for v in chosen),
        margin_bytes=min(known) if known and len(known) == len(chosen) else None,
        sentence=_sentence(verdict, needs, chosen),
    )


def with_host(found: Fit, budget: Budget, room: HostRoom, *, ranks: int) -> Fit:
    """The verdict with the host's RAM counted in: a job that fits the GPUs and not their host does not fit.

    Args:
        found: whether it fits the GPUs.
        budget: the job's; without a ``host`` nothing changes.
        room: the machine's RAM.
        ranks: of the job on that machine.
    """
    if budget.host is None:
        return found
    host = judge_host(budget.host, room, ranks=ranks)
    if host.verdict == "does_not_fit" or (host.verdict == "tight" and found.verdict == "fits"):
        return replace(found, host=host, verdict=host.verdict, sentence=f"{found.sentence}; {host.sentence}")
    return replace(found, host=host)


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
            reserved_bytes=gpu.reserved_bytes or 0,
            committed_bytes=committed.get(gpu.index, 0),
            closed=_closed(gpu),
        )
        for gpu in snapshot.gpus
        if wanted is None or gpu.index in wanted
    )


def _closed(gpu: GpuReading) -> str | None:
    if gpu.compute_mode == "prohibited":
        return "takes no compute programs (compute mode prohibited)"
    if gpu.compute_mode == "exclusive_process" and any(
        kind != "graphics" for p in gpu.processes or () for kind in p.kinds
    ):
        return "takes one program at a time (compute mode exclusive-process) and has one"
    return None


def _place(needs: Sequence[RankNeed], rooms: Sequence[Room]) -> dict[int, GpuVerdict]:
    """A GPU for each rank, as far as there are any; those of unknown room only where the others do not do."""
    by_need = sorted(range(len(needs)), key=lambda rank: -needs[rank].device_bytes)
    known = sorted((r for r in rooms if r.available_bytes is not None), key=lambda r: -(r.available_bytes or 0))
    unknown = [room for room in rooms if room.available_bytes is None]
    first: dict[int, GpuVerdict] = {}
    for count in range(len(unknown) + 1):
        chosen = [*unknown[:count], *known, *unknown[count:]]
        placed = {rank: _judge(needs[rank], room) for rank, room in zip(by_need, chosen, strict=False)}
        if all(verdict.verdict != "does_not_fit" for verdict in placed.values()):
            return placed
        first = first or placed
    return first


def _judge(need: RankNeed, room: Room) -> GpuVerdict:
    available = room.available_bytes
    if available is None:
        return GpuVerdict(room=room, verdict="unknown", need_bytes=need.device_bytes)
    if need.device_bytes > available:
        return GpuVerdict(room=room, verdict="does_not_fit", need_bytes=need.device_bytes)
    fits = need.high_bytes <= available
    return GpuVerdict(room=room, verdict="fits" if fits else "tight", need_bytes=need.device_bytes)


def _sentence(verdict: Verdict, needs: Sequence[RankNeed], chosen: Sequence[GpuVerdict]) -> str:
    ranks, sizes = len(needs), sorted({need.device_bytes for need in needs})
    need = (
        f"{format_gib(sizes[-1])} GiB" if len(sizes) == 1 else f"{format_gib(sizes[0])} to {format_gib(sizes[-1])} GiB"
    )
    each = f"{ranks} × {need}" if ranks > 1 else need
    if len(chosen) < ranks:
        return f"needs {ranks} GPUs ({each}), and there {_are(len(chosen))} here"
    where = "GPU " + ", ".join(str(v.room.index) for v in chosen)
    match verdict:
        case "fits":
            return f"needs {each} and fits on {where}"
        case "tight":
            most = max(need.high_bytes for need in needs)
            return f"needs {each}: expected to fit on {where}, but may take {format_gib(most)} GiB"
        case "does_not_fit":
            worst = max(chosen, key=lambda v: v.short_bytes)
            if worst.room.closed:
                return f"needs {each}; GPU {worst.room.index} {worst.room.closed}"
            return f"needs {each}; GPU {worst.room.index} is short of {format_gib(worst.short_bytes)} GiB"
        case "unknown":
            return f"needs {each}; how much {where} can give is not known"


def _are(count: int) -> str:
    return {0: "are none", 1: "is 1"}.get(count, f"are {count}")
