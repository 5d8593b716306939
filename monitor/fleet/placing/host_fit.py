"""Judges whether one host can take ranks of a job, and on which of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramtop.estimator.budget import RankPeaks

from ...board.fit import DeviceCapacity, check_fit
from .packing import choose_gpus, largest_block, left_after

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vramtop.estimator.budget import Budget, RankPeak

    from ...board.fit import Verdict
    from ..host_reading import HostState
    from .gpu_space import Card, GpuSpace
    from .json_types import HostFitJson


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFit:
    """Verdicts of a job, or of those of its ranks that one host takes, on the GPUs of one type of a host."""

    host: str
    card: Card | None = None
    gpus: int = 0
    """GPUs of that type."""
    now: Verdict = "unknown"
    """With free less committed memory."""
    later: Verdict = "unknown"
    """Once the running jobs have ended."""
    empty: Verdict = "unknown"
    """If nothing else ran there; never better than it is: without the driver's reserve only an upper bound is known."""
    need_bytes: int | None = None
    """Expected peak of the rank with the highest; None: not estimated."""
    taken: tuple[GpuSpace, ...] = ()
    """GPUs of the ranks, in their order, if it fits or is tight now."""
    free_block_bytes: int = 0
    """Free block as it is; GPUs whose memory is unknown are not in it."""
    left_block_bytes: int | None = None
    """Free block with the job on it; None: it cannot take it now."""
    left_bytes: int | None = None
    """Sum of what all of these GPUs have left then, by the upper bound of the job if it fits; None: likewise."""
    reason: str | None = None
    """Why a verdict is unknown, or why the host is not considered."""
    state: HostState = "live"
    age_seconds: float | None = None
    """Time since the last sign of life, of a host that is not live."""

    @property
    def is_considered(self) -> bool:
        """True if its figures are of now."""
        return self.state == "live" and self.card is not None

    def to_json(self) -> HostFitJson:
        """Return the entry of ``hosts`` in ``vramtop fit --json``."""
        return {
            "host": self.host,
            "state": self.state,
            "age_seconds": self.age_seconds,
            "considered": self.is_considered,
            "name": self.card.name if self.card else None,
            "total_bytes": self.card.total_bytes if self.card else None,
            "gpus": self.gpus,
            "verdict": self.now,
            "later": self.later,
            "empty": self.empty,
            "device_bytes": self.need_bytes,
            "placement": [gpu.label for gpu in self.taken],
            "placement_uuids": [gpu.uuid for gpu in self.taken],
            "free_block_bytes": self.free_block_bytes if self.is_considered else None,
            "left_block_bytes": self.left_block_bytes,
            "left_bytes": self.left_bytes,
            "reason": self.reason,
        }


def judge_host(host: str, spaces: Sequence[GpuSpace], budget: Budget, ranks: Sequence[RankPeak]) -> HostFit:
    """Judge ranks of a job on the GPUs of one type of a host.

    Args:
        host: its name.
        spaces: its GPUs of one type.
        budget: of the job on that type.
        ranks: those that the host takes.
    """
    part = RankPeaks(tuple(ranks), 1)

    def verdict(free: Callable[[GpuSpace], int | None]) -> Verdict:
        devices = [_device(position, gpu, free(gpu)) for position, gpu in enumerate(spaces)]
        return check_fit(budget, devices, ranks=part).verdict

    now = verdict(lambda gpu: gpu.now_bytes)
    reason = None
    if now == "unknown":
        if verdict(lambda gpu: gpu.at_most_bytes) == "does_not_fit":
            now = "does_not_fit"
        else:
            reason = next((f"GPU {gpu.label}: {gpu.reason}" for gpu in spaces if gpu.now_bytes is None), None)
    empty = verdict(lambda gpu: gpu.empty_bytes)
    if empty == "does_not_fit":
        later: Verdict = empty
    else:
        later = now if now == "fits" else verdict(lambda gpu: gpu.later_bytes)
    known = [gpu for gpu in spaces if gpu.now_bytes is not None]
    available = [gpu.now_bytes or 0 for gpu in known]
    fit = HostFit(
        host=host,
        card=spaces[0].card,
        gpus=len(spaces),
        now=now,
        later=later,
        empty=empty,
        need_bytes=max(_needs(budget, part, spaces, "tight")),
        free_block_bytes=largest_block(available),
        reason=_too_few(ranks, spaces) or reason or _closed(spaces),
    )
    if now not in ("fits", "tight"):
        return fit
    needs = _needs(budget, part, known, now)
    chosen = choose_gpus(available, needs)
    if chosen is None:
        return fit
    left = left_after(available, needs, chosen)
    return replace(
        fit,
        taken=tuple(known[gpu] for gpu in chosen),
        left_block_bytes=largest_block(left),
        left_bytes=sum(left),
    )


def _closed(spaces: Sequence[GpuSpace]) -> str | None:
    return next((f"GPU {gpu.label} {gpu.closed}" for gpu in spaces if gpu.closed), None)


def _too_few(ranks: Sequence[RankPeak], spaces: Sequence[GpuSpace]) -> str | None:
    if len(spaces) >= len(ranks):
        return None
    return f"has {len(spaces)} of the {len(ranks)} GPUs that it needs"


def _needs(budget: Budget, ranks: RankPeaks, spaces: Sequence[GpuSpace], verdict: Verdict) -> list[int]:
    """Return what each rank takes: its upper bound if that fits, otherwise its expected peak; of a server its share."""
    if budget.serving is not None:
        totals = [gpu.empty_bytes for gpu in spaces if gpu.empty_bytes is not None]
        return [budget.serving.asked_bytes(max(totals, default=0))] * len(ranks)
    return [rank.high_bytes if verdict == "fits" else rank.device_bytes for rank in ranks]


def _device(position: int, gpu: GpuSpace, free_bytes: int | None) -> DeviceCapacity:
    total, empty = gpu.card.total_bytes, gpu.empty_bytes
    return DeviceCapacity(
        index=position,
        uuid=gpu.uuid,
        name=gpu.card.name,
        total_bytes=total,
        free_bytes=free_bytes,
        reserved_bytes=0 if total is None or empty is None else total - empty,
        unusable_reason=gpu.closed,
    )
