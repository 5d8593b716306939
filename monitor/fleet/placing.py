"""A job on the hosts of a fleet: which of them can take it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, structs

from vramtop.estimator.budget import RankPeaks
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import UNSEEN_BYTES

from ..board.board import BEING_READ
from ..board.capacity import DeviceCapacity
from ..board.fit import check_fit
from ..board.fit_result import VERDICTS_BEST_FIRST
from .fleet import HostState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu

    from .fleet import Fleet, FleetGpu, FleetProcess, HostReading

GOOD: tuple[Verdict, ...] = ("fits", "tight")
"""Verdicts with which the job may be started."""
_MAX_RANKS_PER_HOST = 64
_NOT_COMMITTED = "how much more its running jobs will allocate is unknown"


class Card(NamedTuple):
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


class HostFit(Struct, frozen=True, kw_only=True):
    """Whether a host can take a job, or the same share of its ranks as the other hosts, on GPUs of one type."""

    host: str
    """Name of the host."""
    state: HostState = "live"
    """Whether the host answers."""
    age_seconds: float | None = None
    """Seconds since the last sign of life of a host that is not live; null: it is live, or there was none."""
    verdict: Verdict = "unknown"
    """With what is free and not committed now."""
    name: str | None = None
    """Type of its GPUs; null: it has none that the job can use, or is not live."""
    total_bytes: int | None = None
    """Memory of each of these GPUs; null: likewise, or unknown."""
    gpus: int = 0
    """Number of GPUs of that type."""
    free_bytes: int = 0
    """Free and not committed memory of all of them; where it is unknown, it counts as 0."""
    device_bytes: int | None = None
    """Expected peak of the rank with the highest; null: not estimated."""
    placement: tuple[str, ...] = ()
    """Labels of the GPUs of the ranks, in their order: the index, or `0:3` for a MIG device; empty: they do not fit."""
    placement_uuids: tuple[str | None, ...] = ()
    """UUIDs of these GPUs; null: unknown."""
    reason: str | None = None
    """Why the verdict is unknown, or why the host has no GPU for the job; null: it needs none."""


class FleetFit(Struct, frozen=True, kw_only=True):
    """Whether a fleet can take a job, and where it should go."""

    verdict: Verdict
    """Whether it can be started now; unknown: not on the hosts with known figures, and there are others."""
    ranks: int
    """Ranks of the job."""
    placement: tuple[HostFit, ...]
    """Hosts to start it on, in the order of the ranks; empty: it cannot be started now. A job of more ranks than any
    host has GPUs takes the same number of them on each."""
    hosts: tuple[HostFit, ...]
    """Every host: those that can take it first, of these the one with the least free memory."""


class _Device(NamedTuple):
    """A GPU or MIG device with its name on the host."""

    label: str
    capacity: DeviceCapacity
    at_most_bytes: int | None
    """Upper bound of its free memory where that is unknown."""


def place_job(fleet: Fleet, ranks: int, budget_on: Callable[[Card], Budget | None]) -> FleetFit:
    """Judge a job on every host of a fleet, and choose the fullest ones that can take it: large blocks stay free.

    Args:
        fleet: figures of hosts that are not live are not used.
        ranks: of the job; all run on GPUs of one type.
        budget_on: returns the budget of the job on a type of GPU; None: that type is not wanted.
    """
    devices = {host.host: _by_card(host, ranks) for host in fleet.hosts if host.is_live}
    cards = dict.fromkeys(card for each in devices.values() for card in each)
    budgets = {card: budget for card in cards if (budget := budget_on(card)) is not None}
    most = max((len(each[card]) for each in devices.values() for card in each if card in budgets), default=0)
    shares = [count for count in range(min(most, _MAX_RANKS_PER_HOST), 0, -1) if ranks % count == 0]
    tried: list[FleetFit] = []
    for share in [ranks] if most >= ranks or not shares else shares:
        tried.append(_place(fleet, devices, budgets, ranks, share))
        if tried[-1].verdict == "fits":  # fewer ranks on each host take more hosts
            break
    return min(tried, key=lambda fit: VERDICTS_BEST_FIRST.index(fit.verdict))


def _place(
    fleet: Fleet,
    devices: Mapping[str, Mapping[Card, Sequence[_Device]]],
    budgets: Mapping[Card, Budget],
    ranks: int,
    share: int,
) -> FleetFit:
    """Place so many ranks on each host."""
    by_card: dict[Card, list[HostFit]] = {card: [] for card in budgets}
    for name, cards in devices.items():
        for card, of_card in cards.items():
            if card in budgets:
                by_card[card].append(_judge(name, card, of_card, budgets[card], share))
    placed: list[tuple[HostFit, ...]] = []
    for fits in by_card.values():
        fits.sort(key=_order)
        if len(chosen := tuple(fits[: ranks // share])) == ranks // share and chosen[-1].verdict in GOOD:
            placed.append(chosen)
    placement = min(placed, key=lambda chosen: _order(chosen[-1]), default=())
    best: dict[str, HostFit] = {}
    for fit in sorted((fit for fits in by_card.values() for fit in fits), key=_order):
        best.setdefault(fit.host, fit)
    hosts = sorted((best.get(host.host) or _absent(fleet, host) for host in fleet.hosts), key=_order)
    unknown = any(fit.verdict == "unknown" for fit in hosts)
    verdict: Verdict = placement[-1].verdict if placement else "unknown" if unknown else "does_not_fit"
    return FleetFit(verdict=verdict, ranks=ranks, placement=placement, hosts=tuple(hosts))


def _order(fit: HostFit) -> tuple[int, int]:
    return VERDICTS_BEST_FIRST.index(fit.verdict), fit.free_bytes


def _judge(host: str, card: Card, devices: Sequence[_Device], budget: Budget, share: int) -> HostFit:
    ranks, capacities = budget.ranks, [device.capacity for device in devices]
    if share < len(ranks):  # each host may get the rank with the highest peak
        ranks = RankPeaks((max(ranks, key=lambda rank: rank.device_bytes),), share)
    found = check_fit(budget, capacities, ranks=ranks)
    verdict = found.verdict
    if verdict == "unknown":
        freest = [replace(each.capacity, free_bytes=each.at_most_bytes) for each in devices]
        verdict = "does_not_fit" if check_fit(budget, freest, ranks=ranks).verdict == "does_not_fit" else verdict
    taken = [devices[index] for index in found.placement] if found.verdict in GOOD else []
    reasons = ((each.label, each.capacity.unusable_reason or each.capacity.unread_reason) for each in devices)
    reason = next((f"GPU {label} {why}" for label, why in reasons if why), None)
    return HostFit(
        host=host,
        verdict=verdict,
        name=card.name,
        total_bytes=card.total_bytes,
        gpus=len(devices),
        free_bytes=sum(capacity.available_bytes or 0 for capacity in capacities),
        device_bytes=max(rank.device_bytes for rank in budget.ranks),
        placement=tuple(each.label for each in taken),
        placement_uuids=tuple(each.capacity.uuid for each in taken),
        reason=f"has {len(devices)} of the {share} GPUs that it needs" if len(devices) < share else reason,
    )


def _absent(fleet: Fleet, host: HostReading) -> HostFit:
    """Return a host that is not judged, with the reason."""
    if not host.is_live:
        return HostFit(host=host.host, state=host.state, age_seconds=fleet.age_seconds(host), reason=host.reason)
    if not host.gpus and host.faults:
        return HostFit(host=host.host, reason=host.faults[0])
    reason = "has no GPU that the job can use" if host.gpus else "has no GPU"
    return HostFit(host=host.host, verdict="does_not_fit", reason=reason)


def _by_card(host: HostReading, ranks: int) -> dict[Card, list[_Device]]:
    """Return the GPUs of a host by type; a MIG device is for jobs of one rank: a program sees one and no other GPU."""
    found: dict[Card, list[_Device]] = {}
    for card, gpu, label, rows in _parts(host):
        if ranks == 1 or not card.is_mig:
            of_card = found.setdefault(card, [])
            size, free = gpu.total_bytes, None if gpu.is_stale else gpu.free_bytes
            at_most = free if free is not None or size is None else size - (gpu.reserved_bytes or 0)
            of_card.append(_Device(label, _capacity(len(of_card), card, gpu, rows), at_most))
    return found


def _parts(host: HostReading) -> Iterator[tuple[Card, FleetGpu, str, Sequence[FleetProcess] | None]]:
    """Yield the GPUs of a host with their processes; of a GPU in MIG mode, its MIG devices."""
    for gpu in host.gpus:
        for device in gpu.devices:
            rows = None
            if gpu.processes is not None and all(row.device is not None for row in gpu.processes):
                rows = [row for row in gpu.processes if row.device == device.label]
            card = Card(device.name or gpu.name, device.total_bytes, is_mig=True)
            part = structs.replace(device, is_stale=gpu.is_stale, fault=device.fault or gpu.fault, closed=gpu.closed)
            yield card, part, device.shown_label, rows
        if not gpu.devices:
            yield Card(gpu.name, gpu.total_bytes), gpu, gpu.shown_label, gpu.processes


def _capacity(position: int, card: Card, gpu: FleetGpu, rows: Sequence[FleetProcess] | None) -> DeviceCapacity:
    """Return what a GPU has for a job: unknown where what its running jobs will yet allocate is unknown."""
    capacity = DeviceCapacity(
        index=position,
        uuid=gpu.uuid,
        name=card.name,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        reserved_bytes=gpu.reserved_bytes or 0,
        unusable_reason=gpu.closed,
    )
    committed = gpu.committed_bytes
    if any(row.note == BEING_READ for row in rows or ()):
        committed = None
    elif not rows and gpu.used_bytes is not None and gpu.used_bytes < UNSEEN_BYTES:  # a context alone takes more
        committed = committed or 0
    elif rows is None:
        committed = None
    if gpu.is_stale or gpu.free_bytes is None:
        why = "has a driver that does not answer" if gpu.is_stale else gpu.fault or "has unknown free memory"
        return replace(capacity, free_bytes=None, unread_reason=why)
    if committed is None:
        return replace(capacity, free_bytes=None, unread_reason=f"is not judged: {_NOT_COMMITTED}")
    return replace(capacity, committed_bytes=committed)
