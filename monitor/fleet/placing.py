"""A job over the fleet: which hosts can take it now, which later, and where it leaves the largest free block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cmp_to_key
from itertools import groupby
from typing import TYPE_CHECKING, TypedDict, TypeVar

from vramtop.estimator.budget import RankPeaks
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.sizes import UNSEEN_BYTES

from ..board.board import BEING_READ
from ..board.fit import VERDICTS_BEST_FIRST, DeviceCapacity, check_fit
from .fleet import HostState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vramtop.estimator.budget import Budget, RankPeak
    from vramtop.estimator.job.gpu_catalogue import Gpu

    from .fleet import Fleet, FleetGpu, FleetProcess, HostReading

# The choice of GPUs and of hosts that leaves the largest free block.
#
# The free block of a host is the most memory that one more job could take on it if it took as much on each of its
# GPUs: the largest k x the memory that k of the GPUs have at least. A placement is better if the largest block that
# it leaves in the fleet is larger; if they are equal, if the second largest is, and so on.


_T = TypeVar("_T")


def largest_block(available: Iterable[int]) -> int:
    """Return the free block of a host.

    Args:
        available: bytes of each of its GPUs.
    """
    most_first = sorted(available, reverse=True)
    return max((count * size for count, size in enumerate(most_first, 1)), default=0)


def choose_gpus(available: Sequence[int], needs: Sequence[int]) -> tuple[int, ...] | None:
    """Return the GPU of each rank, by its position, which leave the host the largest block; None: they do not fit.

    Each rank takes a GPU of its own. If the ranks are alike, no other choice leaves a larger block. For a given height
    of the block, GPUs below it are taken first, and those that stay above it with the rank; then the block shrinks.

    Args:
        available: bytes of each GPU.
        needs: bytes of each rank.
    """
    heights = {size for size in available if size > 0}
    heights |= {size - need for size in heights for need in set(needs) if size > need}
    found: dict[tuple[int, ...], None] = {}
    for height in sorted(heights, reverse=True) or [0]:
        chosen = _choose_around(available, needs, height)
        if chosen is None:
            return None
        found[chosen] = None
    return max(found, key=lambda chosen: _rank_of_choice(left_after(available, needs, chosen)))


def left_after(available: Sequence[int], needs: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Return what each GPU has left with ranks on some of them."""
    left = list(available)
    for gpu, need in zip(chosen, needs, strict=True):
        left[gpu] -= need
    return left


def best_first(hosts: Iterable[_T], before: Callable[[_T], int], after: Callable[[_T], int]) -> list[_T]:
    """Return hosts in the order in which a job should take them; of equal ones the first stays first.

    Args:
        hosts: that can take it.
        before: free block of a host as it is.
        after: free block of a host with the job on it.
    """

    def compare(one: _T, other: _T) -> int:
        with_one = sorted((after(one), before(other)), reverse=True)
        with_other = sorted((before(one), after(other)), reverse=True)
        return (with_other > with_one) - (with_one > with_other)

    return sorted(hosts, key=cmp_to_key(compare))


def _choose_around(available: Sequence[int], needs: Sequence[int], height: int) -> tuple[int, ...] | None:
    """Place the rank with the highest need first, on the smallest GPU that it takes nothing of the block from."""
    free = sorted(range(len(available)), key=lambda gpu: available[gpu])
    chosen = [0] * len(needs)
    for rank in sorted(range(len(needs)), key=lambda rank: -needs[rank]):
        need = needs[rank]
        fitting = [gpu for gpu in free if available[gpu] >= need]
        if not fitting:
            return None
        outside = (gpu for gpu in fitting if available[gpu] < height or available[gpu] - need >= height)
        chosen[rank] = next(outside, fitting[0])
        free.remove(chosen[rank])
    return tuple(chosen)


def _rank_of_choice(left: Sequence[int]) -> tuple[int, list[int]]:
    return largest_block(left), sorted(left, reverse=True)


# Judges whether one host can take ranks of a job, and on which of its GPUs.


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


# Memory that one GPU of a fleet has for a job: now, once the running jobs have ended, and empty.


_STALE = "its driver does not answer"
_UNREAD = "its free memory is unknown"
_NOT_COMMITTED = "how much more its running jobs will allocate is unknown"


@dataclass(frozen=True, slots=True)
class Card:
    """A type of GPU; estimates depend on it."""

    name: str | None
    """Name as the driver reports it."""
    total_bytes: int | None
    is_mig: bool = False
    """A MIG device of such a GPU."""

    @property
    def gpu_type(self) -> Gpu | None:
        """Catalogue entry; for a MIG device, of the GPU that it is a part of; None: unknown."""
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # not at start-up

        return match_nvml_name(self.name, None if self.is_mig else self.total_bytes) if self.name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpace:
    """Bytes that one GPU, or one MIG device, has for a job; None: unknown."""

    label: str
    uuid: str | None
    card: Card
    now_bytes: int | None
    """Free less committed."""
    at_most_bytes: int | None
    """Upper bound of ``now_bytes`` where that is unknown."""
    later_bytes: int | None
    """Once the running jobs that vramtop knows have ended: free, and what their processes hold. Memory of other
    processes, and memory without a process, stays taken."""
    empty_bytes: int | None
    """Total less what the driver reserves; if that is unknown, the total."""
    reason: str | None = None
    """Why ``now_bytes`` is unknown."""
    closed: str | None = None
    """Why no program can be started on it; it has 0 bytes."""


def spaces_of(host: HostReading) -> tuple[GpuSpace, ...]:
    """Return the GPUs of a host that is live; of a GPU in MIG mode, its MIG devices."""
    return tuple(space for gpu in host.gpus for space in _spaces(gpu))


def _spaces(gpu: FleetGpu) -> Iterator[GpuSpace]:
    for device in gpu.devices:
        rows = None
        if gpu.processes is not None and all(row.device is not None for row in gpu.processes):
            rows = [row for row in gpu.processes if row.device == device.label]
        space = _space(device, rows, Card(device.name or gpu.name, device.total_bytes, is_mig=True), stale=gpu.is_stale)
        yield _closed_gpu_space(space, gpu.closed)
    if not gpu.devices:
        space = _space(gpu, gpu.processes, Card(gpu.name, gpu.total_bytes), stale=gpu.is_stale)
        yield _closed_gpu_space(space, gpu.closed)


def _closed_gpu_space(space: GpuSpace, reason: str | None) -> GpuSpace:
    """Return the GPU as it is if programs can be started on it, otherwise without memory for a job."""
    if reason is None:
        return space
    return replace(space, now_bytes=0, at_most_bytes=0, later_bytes=0, empty_bytes=0, reason=None, closed=reason)


def _space(gpu: FleetGpu, rows: Sequence[FleetProcess] | None, card: Card, *, stale: bool) -> GpuSpace:
    total, free = gpu.total_bytes, None if stale else gpu.free_bytes
    empty = None if total is None else total - (gpu.reserved_bytes or 0)
    committed = _committed(gpu, rows)
    ending = _held_by_jobs(gpu, rows)
    now = None if free is None or committed is None else max(0, free - committed)
    reason = None
    if free is None:
        reason = _STALE if stale else gpu.fault or _UNREAD
    elif committed is None:
        reason = _NOT_COMMITTED
    return GpuSpace(
        label=gpu.shown_label,
        uuid=gpu.uuid,
        card=card,
        now_bytes=now,
        at_most_bytes=empty if free is None else free,
        later_bytes=None if free is None or ending is None else _at_most(free + ending, empty),
        empty_bytes=empty,
        reason=reason,
    )


def _committed(gpu: FleetGpu, rows: Sequence[FleetProcess] | None) -> int | None:
    """Return what running jobs will yet allocate; on a GPU that nothing runs on, nothing.

    A CUDA context alone takes more than ``UNSEEN_BYTES``.
    """
    if any(row.note == BEING_READ for row in rows or ()):
        return None
    if rows:
        return gpu.committed_bytes
    if gpu.used_bytes is not None and gpu.used_bytes < UNSEEN_BYTES:
        return gpu.committed_bytes or 0
    return None if rows is None else gpu.committed_bytes


def _held_by_jobs(gpu: FleetGpu, rows: Sequence[FleetProcess] | None) -> int | None:
    """Return what becomes free once the known jobs end; None: unknown."""
    if gpu.used_bytes is not None and gpu.used_bytes < UNSEEN_BYTES:
        return 0
    if rows is None or (not rows and gpu.unattributed_bytes is None):
        return None
    sizes = [row.used_bytes for row in rows if row.job is not None]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _at_most(size: int, limit: int | None) -> int:
    return size if limit is None else min(size, limit)


# A job placed over a fleet: the verdict of each host, and the hosts on which it leaves the largest free block.


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
                       reason="has other GPUs than the other hosts of the job") for name, cards in groups.items()
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


# The JSON of a job over a fleet, key by key (``vramtop fit --host --json``); its schema is made from these types.


class PlacedHostJson(TypedDict):
    """A host that the job should be started on."""

    host: str
    """Name of the host."""
    gpus: list[str]
    """Labels of the GPUs, in the order of the ranks: the index, or `0:3` for a MIG device."""
    uuids: list[str | None]
    """UUIDs of these GPUs; null: unknown."""


class HostFitJson(TypedDict):
    """Verdicts of a job, or of those of its ranks that one host takes, on the GPUs of one type of a host."""

    host: str
    """Name of the host."""
    state: HostState
    """Whether the host answers."""
    age_seconds: float | None
    """Seconds since the last sign of life of a host that is not live; null: it is live, or there was none."""
    considered: bool
    """Its figures are of now, and it has GPUs that the job can use."""
    name: str | None
    """Type of its GPUs; null: not considered."""
    total_bytes: int | None
    """Memory of each of these GPUs; null: not considered."""
    gpus: int
    """Number of GPUs of that type."""
    verdict: Verdict
    """With what is free and not committed now."""
    later: Verdict
    """Once the running jobs have ended."""
    empty: Verdict
    """If nothing else ran there."""
    device_bytes: int | None
    """Expected peak of the rank with the highest; null: not estimated."""
    placement: list[str]
    """Labels of the GPUs of the ranks, in their order; empty: the host cannot take the job now."""
    placement_uuids: list[str | None]
    """UUIDs of these GPUs; null: unknown."""
    free_block_bytes: int | None
    """Largest free block as it is; null: not considered."""
    left_block_bytes: int | None
    """Largest free block with the job on it; null: it cannot take the job now."""
    left_bytes: int | None
    """Sum of what all of these GPUs have left then; null: likewise."""
    reason: str | None
    """Why a verdict is unknown, or why the host is not considered; null: it needs none."""


class FleetFitJson(TypedDict):
    """Whether a fleet can take a job, and where it should go."""

    verdict: Verdict
    """Whether it can be started now."""
    later: Verdict
    """Whether it can be started once the running jobs have ended."""
    empty: Verdict
    """Whether it could be started if nothing else ran anywhere."""
    ranks: int
    """Ranks of the job."""
    hosts_needed: int
    """1, or the number of hosts over which a job is spread that has more ranks than any host has GPUs."""
    placement: list[PlacedHostJson]
    """Hosts that leave the largest free block, in the order of the ranks; empty: it cannot be started now."""
    largest_block_bytes: int | None
    """Largest free block in the fleet with the job placed; null: it is not placed."""
    hosts: list[HostFitJson]
    """Every host: those that the job should take first, those without figures of now last."""
