"""A job placed over a fleet: the verdict of each host, and the hosts on which it leaves the largest free block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ...board.fit import VERDICTS_BEST_FIRST
from .gpu_space import spaces_of
from .host_fit import HostFit, judge_host
from .packing import best_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vramtop.estimator.budget import Budget

    from ...board.fit import Verdict
    from ..fleet import Fleet
    from ..host_reading import HostReading
    from .gpu_space import Card, GpuSpace
    from .json_types import FleetFitJson

_MAX_RANKS_PER_HOST = 64
_Groups = dict[str, dict["Card", list["GpuSpace"]]]
"""GPUs that the job can use, by host and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFit:
    """Whether a fleet can take a job, and where it should go."""

    now: Verdict
    """``fits``, ``tight``: it can be started; ``unknown``: it cannot on the hosts with figures of now, and there are
    others; ``does_not_fit``: on none."""
    later: Verdict
    """Verdict once the running jobs have ended."""
    empty: Verdict
    """Verdict if nothing else ran anywhere."""
    ranks: int
    hosts_needed: int
    """1, or for a job of more ranks than any host has GPUs the number over which it is spread."""
    placement: tuple[HostFit, ...] = ()
    """Hosts that leave the largest free block, in the order of the ranks; empty: it cannot be started now."""
    hosts: tuple[HostFit, ...] = ()
    """Every host, those that the job should take first; those without figures of now last."""

    @property
    def largest_block_bytes(self) -> int | None:
        """Largest free block in the fleet with the job placed; None: it is not placed."""
        if not self.placement:
            return None
        taken = {fit.host for fit in self.placement}
        rest = (fit.free_block_bytes for fit in self.hosts if fit.is_considered and fit.host not in taken)
        return max((*rest, *(fit.left_block_bytes or 0 for fit in self.placement)))

    def count(self, verdict: Callable[[HostFit], Verdict], *wanted: Verdict) -> int:
        """Return the number of hosts with one of these verdicts."""
        return sum(fit.is_considered and verdict(fit) in wanted for fit in self.hosts)

    def to_json(self) -> FleetFitJson:
        """Return the keys of ``vramtop fit --json`` over a fleet."""
        return {
            "verdict": self.now,
            "later": self.later,
            "empty": self.empty,
            "ranks": self.ranks,
            "hosts_needed": self.hosts_needed,
            "placement": [
                {"host": fit.host, "gpus": [gpu.label for gpu in fit.taken], "uuids": [gpu.uuid for gpu in fit.taken]}
                for fit in self.placement
            ],
            "largest_block_bytes": self.largest_block_bytes,
            "hosts": [fit.to_json() for fit in self.hosts],
        }


def place_job(fleet: Fleet, ranks: int, budget_on: Callable[[Card], Budget | None]) -> FleetFit:
    """Judge a job on every host of a fleet, and choose the hosts that leave the largest free block.

    All of its ranks run on GPUs of one type. A job of more ranks than any host has GPUs takes the same number of them
    on each of the fewest hosts that suffice.

    Args:
        fleet: figures of hosts that are not live are not used.
        ranks: of the job.
        budget_on: returns the budget of the job on a type of GPU; None: that type is not wanted.
    """
    live = [host for host in fleet.hosts if host.is_live]
    groups = {host.host: _usable(spaces_of(host), ranks) for host in live}
    budgets = {card: budget_on(card) for card in dict.fromkeys(card for each in groups.values() for card in each)}
    wanted = {card: budget for card, budget in budgets.items() if budget is not None}
    groups = {name: {card: gpus for card, gpus in each.items() if card in wanted} for name, each in groups.items()}
    absent = [_absent(fleet, host, groups) for host in fleet.hosts if not groups.get(host.host)]
    sizes = [len(gpus) for each in groups.values() for gpus in each.values()]
    unjudged = any(fit.now == "unknown" for fit in absent)
    if not sizes or max(sizes) >= ranks:
        return _on_one_host(groups, wanted, ranks, absent, unjudged=unjudged)
    tried: list[FleetFit] = []
    for card, budget in wanted.items():
        for each in _ranks_per_host(ranks, max(len(gpus.get(card, ())) for gpus in groups.values())):
            tried.append(_on_several_hosts(groups, card, budget, each, absent, unjudged=unjudged))
            if tried[-1].now == "fits":  # fewer ranks on each host take more hosts
                break
    return min(
        tried, key=lambda fit: (*map(VERDICTS_BEST_FIRST.index, (fit.now, fit.later, fit.empty)), fit.hosts_needed)
    )


def _usable(spaces: Iterable[GpuSpace], ranks: int) -> dict[Card, list[GpuSpace]]:
    """Return GPUs by type; a MIG device is for jobs of one rank: a program sees one of them and no other GPU."""
    groups: dict[Card, list[GpuSpace]] = {}
    for gpu in spaces:
        if ranks == 1 or not gpu.card.is_mig:
            groups.setdefault(gpu.card, []).append(gpu)
    return groups


def _absent(fleet: Fleet, host: HostReading, groups: Mapping[str, object]) -> HostFit:
    """Return a host that is not considered, with the reason."""
    if host.is_live and not host.gpus and host.faults:
        return HostFit(host=host.host, reason=host.faults[0])
    if host.is_live:
        reason = "has no GPU that the job can use" if host.host in groups and host.gpus else "has no GPU"
        return HostFit(host=host.host, now="does_not_fit", later="does_not_fit", empty="does_not_fit", reason=reason)
    age = fleet.age_seconds(host)
    return HostFit(host=host.host, state=host.state, age_seconds=age, reason=host.reason)


def _on_one_host(
    groups: _Groups, budgets: Mapping[Card, Budget], ranks: int, absent: Sequence[HostFit], *, unjudged: bool
) -> FleetFit:
    fits = []
    for name, cards in groups.items():
        each = [judge_host(name, gpus, budgets[card], budgets[card].ranks[:]) for card, gpus in cards.items()]
        if each:
            fits.append(min(each, key=_badness))
    ordered = _ordered(fits)
    now, later, empty = (
        _best([verdict(fit) for fit in ordered], 1, unjudged=unjudged) for verdict in (_now, _later, _empty)
    )
    placement = tuple(ordered[:1]) if now in ("fits", "tight") else ()
    return FleetFit(
        now=now, later=later, empty=empty, ranks=ranks, hosts_needed=1, placement=placement, hosts=(*ordered, *absent)
    )


def _on_several_hosts(
    groups: _Groups, card: Card, budget: Budget, per_host: int, absent: Sequence[HostFit], *, unjudged: bool
) -> FleetFit:
    """Place the ranks, so many on each host; those with the highest peaks choose their hosts first."""
    count = len(budget.ranks)
    parts = [(at, budget.ranks[at : at + per_host]) for at in range(0, count, per_host)]
    parts.sort(key=lambda part: -max(rank.device_bytes for rank in part[1]))
    rest = {name: cards[card] for name, cards in groups.items() if card in cards}
    without = [HostFit(host=name, now="does_not_fit", later="does_not_fit", empty="does_not_fit",
                       reason="has other GPUs than the hosts that it is spread over") for name, cards in groups.items()
               if cards and card not in cards]  # fmt: skip
    chosen: dict[int, HostFit] = {}
    fits: list[HostFit] = []
    for ranks, alike in groupby(parts, key=lambda part: part[1]):
        positions = [at for at, _ in alike]
        fits = _ordered([judge_host(name, gpus, budget, ranks) for name, gpus in rest.items()])
        for at, fit in zip(positions, fits, strict=False):
            chosen[at] = fit
            del rest[fit.host]
        fits = fits[len(positions) :]
    placed = [chosen[at] for at in sorted(chosen)]
    now = _best([fit.now for fit in placed], len(parts), unjudged=unjudged)
    everyone = [*placed, *fits]
    later, empty = (
        _best(sorted(map(verdict, everyone), key=VERDICTS_BEST_FIRST.index), len(parts), unjudged=unjudged)
        for verdict in (_later, _empty)
    )
    return FleetFit(
        now=now,
        later=later,
        empty=empty,
        ranks=count,
        hosts_needed=len(parts),
        placement=tuple(placed) if now in ("fits", "tight") else (),
        hosts=(*_ordered(everyone), *without, *absent),
    )


def _best(verdicts: Sequence[Verdict], hosts: int, *, unjudged: bool) -> Verdict:
    """Return the verdict of the job on so many hosts, the best of which come first."""
    enough = sorted(verdicts, key=VERDICTS_BEST_FIRST.index)[:hosts]
    worst = enough[-1] if len(enough) == hosts else "does_not_fit"
    return "unknown" if worst == "does_not_fit" and unjudged else worst


def _ordered(fits: Iterable[HostFit]) -> list[HostFit]:
    """Return hosts by verdict; those that can take the job by the free block that they leave in the fleet."""
    found: list[HostFit] = []
    for (now, *_), alike in groupby(sorted(fits, key=_badness), key=_badness):
        if VERDICTS_BEST_FIRST[now] in ("fits", "tight"):
            found += best_first(alike, lambda fit: fit.free_block_bytes, lambda fit: fit.left_block_bytes or 0)
        else:
            found += alike
    return found


def _badness(fit: HostFit) -> tuple[int, int, int]:
    """Return the place of a host by its verdicts; one that can take the job now is no better for later ones."""
    now, later, empty = map(VERDICTS_BEST_FIRST.index, (fit.now, fit.later, fit.empty))
    return (now, 0, 0) if fit.now in ("fits", "tight") else (now, later, empty)


def _ranks_per_host(ranks: int, gpus: int) -> Iterator[int]:
    """Yield the equal numbers of ranks that a host with so many GPUs can take, largest first."""
    for count in range(min(gpus, _MAX_RANKS_PER_HOST), 0, -1):
        if ranks % count == 0:
            yield count


def _now(fit: HostFit) -> Verdict:
    return fit.now


def _later(fit: HostFit) -> Verdict:
    return fit.later


def _empty(fit: HostFit) -> Verdict:
    return fit.empty
