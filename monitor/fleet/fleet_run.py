"""A run over several hosts: its ranks, the rank with the highest peak, its spread, stragglers and divergence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .host_reading import FleetGpu, FleetProcess, HostReading

_STATUS_ORDER = (
    "out_of_memory",
    "over",
    "growing",
    "under",
    "unknown",
    "incomplete",
    "loading",
    "warming_up",
    "on_budget",
)
"""Worst first."""
_EARLY = ("loading", "warming_up")
_STEPS_APART = 2
"""Ranks that train together are at the same step or the next one."""


@dataclass(frozen=True, slots=True)
class FleetRank:
    """One process of a run on one GPU of one host."""

    host: HostReading
    gpu: FleetGpu
    process: FleetProcess

    @property
    def is_live(self) -> bool:
        """True if its figures are of now."""
        return self.host.is_live and not self.gpu.is_stale

    @property
    def rank(self) -> int | None:
        """Rank over all hosts."""
        return None if self.process.facts is None else self.process.facts.rank

    @property
    def peak_bytes(self) -> int | None:
        """The most that it was seen to hold; what it holds if its peak is unknown."""
        known = [size for size in (self.process.peak_bytes, self.process.used_bytes) if size is not None]
        return max(known, default=None)

    @property
    def label(self) -> str:
        """Where it is: ``rank 9 on node02, GPU 1``."""
        number = (
            f"rank {self.rank}" if self.rank is not None else f"pid {self.process.pid}" if self.process.pid else "it"
        )
        return f"{number} on {self.host.host}, GPU {self.process.device or self.gpu.shown_label}"


@dataclass(frozen=True)
class FleetRun:
    """One run: the processes that train one job together, on one host or several."""

    key: tuple[Hashable, ...]
    """Key of the run, equal in every fleet."""
    ranks: tuple[FleetRank, ...]
    """By rank, as far as the ranks are known. A rank on several GPUs is listed once per GPU."""

    @cached_property
    def job(self) -> str | None:
        """Label of its job; None: unknown."""
        return next((rank.process.job for rank in self.ranks if rank.process.job), None)

    @cached_property
    def user(self) -> str | None:
        """Its user; None: unknown."""
        return next((rank.process.user for rank in self.ranks if rank.process.user), None)

    @cached_property
    def hosts(self) -> tuple[HostReading, ...]:
        """Its hosts, each once."""
        return tuple({rank.host.host: rank.host for rank in self.ranks}.values())

    @cached_property
    def live_ranks(self) -> tuple[FleetRank, ...]:
        """The ranks whose figures are of now; all figures below are of these."""
        return tuple(rank for rank in self.ranks if rank.is_live)

    @cached_property
    def world_size(self) -> int | None:
        """Ranks over all hosts, as the ranks say; None: they do not."""
        known = [rank.process.facts.world_size for rank in self.ranks if rank.process.facts]
        return max((size for size in known if size is not None), default=None)

    @cached_property
    def rank_count(self) -> int:
        """Ranks that were found, whether their figures are of now or not."""
        return len({(rank.host.host, *_identity(rank)) for rank in self.ranks})

    @property
    def unseen_ranks(self) -> int:
        """Ranks that no host of the fleet shows, by the world size."""
        return max(0, (self.world_size or 0) - self.rank_count)

    @cached_property
    def highest(self) -> FleetRank | None:
        """The rank with the highest peak; None if no figure is known."""
        known = [rank for rank in self.live_ranks if rank.peak_bytes is not None]
        return max(known, key=lambda rank: rank.peak_bytes or 0, default=None)

    @cached_property
    def used_bytes(self) -> int | None:
        """Memory of the live ranks of known size together; None: no size is known."""
        sizes = [rank.process.used_bytes for rank in self.live_ranks if rank.process.used_bytes is not None]
        return sum(sizes) if sizes else None

    @cached_property
    def is_partial(self) -> bool:
        """True if ``used_bytes`` is a lower bound: a rank is silent, unseen, or of unknown size."""
        silent = len(self.live_ranks) < len(self.ranks)
        return silent or self.unseen_ranks > 0 or any(rank.process.used_bytes is None for rank in self.live_ranks)

    @cached_property
    def spread_bytes(self) -> int | None:
        """Difference between the highest and the lowest live rank; None for one rank or an unknown size."""
        sizes = [rank.process.used_bytes for rank in self.live_ranks]
        known = [size for size in sizes if size is not None]
        return max(known) - min(known) if len(known) == len(sizes) > 1 else None

    @cached_property
    def budget_bytes(self) -> int | None:
        """Predicted memory of all ranks of its world size in the steady state; None: no rank has a budget.

        Ranks that no host shows, or that have no budget of their own, count as the largest budget that is known.
        """
        known = [rank.process.budget_bytes for rank in self.ranks if rank.process.budget_bytes is not None]
        if not known:
            return None
        return sum(known) + max(known) * max(0, (self.world_size or len(self.ranks)) - len(known))

    @cached_property
    def status(self) -> str | None:
        """Worst status of its live ranks; None: none is compared with a budget."""
        found = {rank.process.status for rank in self.live_ranks if rank.process.status}
        worst = next((status for status in _STATUS_ORDER if status in found), None)
        return worst or next(iter(sorted(found)), None)

    @cached_property
    def diverging(self) -> tuple[FleetRank, ...]:
        """The live ranks whose status needs attention, worst first."""
        found = [rank for rank in self.live_ranks if rank.process.diverges]
        return tuple(sorted(found, key=lambda rank: _STATUS_ORDER.index(rank.process.status or "unknown")))

    @cached_property
    def stragglers(self) -> tuple[FleetRank, ...]:
        """Live ranks that are behind the others: by their steps, or still loading while most are past that.

        Hosts are read at different times, so a rank may be behind by as many steps as fit into the difference.
        """
        behind = {id(rank) for rank in self._behind_by_steps()}
        early = [rank for rank in self.live_ranks if rank.process.status in _EARLY]
        judged = [rank for rank in self.live_ranks if rank.process.status is not None]
        if 0 < len(early) * 2 < len(judged):
            behind |= {id(rank) for rank in early}
        return tuple(rank for rank in self.live_ranks if id(rank) in behind)

    def _behind_by_steps(self) -> list[FleetRank]:
        counted = [rank for rank in self.live_ranks if rank.process.steps is not None and rank.process.steps_at]
        seconds = [rank.process.step_seconds for rank in counted if rank.process.step_seconds]
        if len(counted) < 2 or not seconds:
            return []
        one_step = median(seconds)
        front = max(counted, key=lambda rank: rank.process.steps or 0).process
        return [rank for rank in counted if _steps_behind(rank.process, front, one_step) > _STEPS_APART]


def _identity(rank: FleetRank) -> tuple[object, ...]:
    """Return what tells a rank from the others on its host: its process, or its GPU where that is not known."""
    process = rank.process
    return (rank.gpu.index,) if process.pid is None else (process.pid, process.start_time, rank.rank)


def _steps_behind(process: FleetProcess, front: FleetProcess, one_step: float) -> float:
    """Return by how many steps a rank is behind, less those that fit into the time between the two readings."""
    later = (front.steps_at or 0.0) - (process.steps_at or 0.0)
    return (front.steps or 0) - (process.steps or 0) - abs(later) / one_step
