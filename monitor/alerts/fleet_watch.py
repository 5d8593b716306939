"""The watch over the alerts of many hosts: told in groups, so that a rack that goes away is told once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from ..host.plain_text import duration_text
from .alert_watch import (
    CANNOT_FIT,
    FULL_WITHIN_SECONDS,
    GPU_LOST,
    GROWING,
    HOST_SILENT,
    MAX_SENTENCE,
    MIN_UNATTRIBUTED_BYTES,
    OVER_BUDGET,
    UNATTRIBUTED,
    AlertWatch,
    Announcement,
    ChosenAlerts,
    Condition,
    Conditions,
    plain_text,
    whose_job,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ..fleet.fleet import Fleet, FleetGpu, FleetRank, FleetRun, HostReading
    from .alert_watch import AlertStates, Key, QuietHours, Rule

# The conditions of the rules on a fleet, keyed by host and what they are about; a run over hosts is one condition.


_SILENT_STATES = ("silent", "unreachable")
_EXPORTED_FAULT = "it cannot be read: "
"""How the readings from Prometheus begin a fault of a whole GPU."""


def find_fleet_conditions(fleet: Fleet, had_gpus: Collection[str] = ()) -> Conditions:
    """Return the conditions at the time of a fleet. Of a host that is not live only that is told.

    Args:
        fleet: the latest one.
        had_gpus: names of the hosts that have had GPUs: that none can be read there is told of no others.
    """
    if not fleet.hosts:
        return Conditions(all_unknown=True)
    found = _Found()
    for host in fleet.hosts:
        found.look_at_host(host, had_gpus=host.host in had_gpus)
    for run in fleet.runs:
        found.look_at_run(run)
    return Conditions(
        present=tuple(found.present),
        unknown=frozenset(found.unknown),
        unknown_gpus=frozenset(found.unknown_gpus),
        unknown_hosts=frozenset(found.unknown_hosts),
    )


class _Found(msgspec.Struct):
    """What was found in a fleet so far."""

    present: list[Condition] = msgspec.field(default_factory=list)
    unknown: set[Key] = msgspec.field(default_factory=set)
    unknown_gpus: set[str | tuple[str, str]] = msgspec.field(default_factory=set)
    unknown_hosts: set[str] = msgspec.field(default_factory=set)

    def look_at_host(self, host: HostReading, *, had_gpus: bool) -> None:
        """Find that it is silent, has lost GPUs, has memory of no visible process, or pending jobs that do not fit."""
        if not host.is_live:
            self.unknown_hosts.add(host.host)
            if host.state in _SILENT_STATES:
                self._add(HOST_SILENT, host, f"is {host.state}{_because(host.reason)}")
            else:
                self.unknown.add((HOST_SILENT.name, host.host))
            return
        if not host.gpus:
            self.unknown_hosts.add(host.host)
            if had_gpus:
                self._add(GPU_LOST, host, f"has no GPU that can be read{_because(next(iter(host.faults), None))}")
            return
        for fault in host.unlisted:
            self._add(GPU_LOST, host, f"has lost a GPU{_because(fault)}", about=fault)
        for gpu in host.gpus:
            self._look_at_gpu(host, gpu)
        if host.pending:
            self._look_at_pending(host)

    def look_at_run(self, run: FleetRun) -> None:
        """Find out whether some ranks are over their budget, or grow and fill a GPU."""
        over: list[FleetRank] = []
        growing: list[FleetRank] = []
        for rank in run.live_ranks:
            process = rank.process
            status = process.status
            if status == "over":
                over.append(rank)
            elif status == "growing":
                if process.full_seconds is None or process.full_seconds < FULL_WITHIN_SECONDS:
                    growing.append(rank)
                if process.used_bytes and process.high_bytes and process.used_bytes > process.high_bytes:
                    self.unknown.add((OVER_BUDGET.name, run.key))
            elif status == "unknown":
                self.unknown |= {(OVER_BUDGET.name, run.key), (GROWING.name, run.key)}
        if over:
            self.present.append(_over(run, over))
        if growing:
            self.present.append(_growing(run, growing))

    def _look_at_gpu(self, host: HostReading, gpu: FleetGpu) -> None:
        if gpu.is_stale or gpu.processes is None:
            labels = (gpu.shown_label, *(device.shown_label for device in gpu.devices))
            self.unknown_gpus |= {(host.host, label) for label in labels}
        name = f"GPU {gpu.shown_label} of {_name(host.host)}"
        if gpu.is_lost or (gpu.is_stale and gpu.fault):
            fault = (gpu.fault or "").removeprefix(_EXPORTED_FAULT)
            self._add_gpu(GPU_LOST, host, gpu, f"{name} cannot be read{_because(fault)}")
        size = gpu.unattributed_bytes
        if size is None or gpu.is_stale or gpu.processes is None:
            self.unknown.add((UNATTRIBUTED.name, host.host, gpu.uuid or gpu.index))
        elif size > MIN_UNATTRIBUTED_BYTES:
            words = f"{format_gib(size)} GiB of {name} belong to no visible process"
            self._add_gpu(UNATTRIBUTED, host, gpu, words, value_bytes=size)

    def _look_at_pending(self, host: HostReading) -> None:
        """Find pending jobs that do not fit; jobs of the same name are numbered."""
        seen: Counter[str] = Counter()
        for pending in host.pending:
            seen[pending.job] += 1
            key = (CANNOT_FIT.name, host.host, pending.job, seen[pending.job])
            if pending.verdict == "unknown":
                self.unknown.add(key)
            elif pending.verdict == "does_not_fit":
                job = plain_text(pending.job)
                sentence = f"{job} does not fit on {_name(host.host)}"
                self.present.append(Condition(rule=CANNOT_FIT, key=key, sentence=sentence, hosts=(host.host,), job=job))

    def _add(self, rule: Rule, host: HostReading, words: str, *, about: str = "") -> None:
        key = (rule.name, host.host, about) if about else (rule.name, host.host)
        self.present.append(Condition(rule=rule, key=key, sentence=f"{_name(host.host)} {words}", hosts=(host.host,)))

    def _add_gpu(
        self, rule: Rule, host: HostReading, gpu: FleetGpu, sentence: str, *, value_bytes: int | None = None
    ) -> None:
        self.present.append(
            Condition(
                rule=rule,
                key=(rule.name, host.host, gpu.uuid or gpu.index),
                sentence=sentence,
                gpus=(gpu.shown_label,),
                uuids=(gpu.uuid or "",),
                hosts=(host.host,),
                value_bytes=value_bytes,
            )
        )


def _over(run: FleetRun, ranks: list[FleetRank]) -> Condition:
    def excess(rank: FleetRank) -> int:
        return (rank.process.used_bytes or 0) - (rank.process.budget_bytes or 0)

    ranks = sorted(ranks, key=excess, reverse=True)
    process = ranks[0].process
    most = None if process.used_bytes is None or process.budget_bytes is None else excess(ranks[0])
    figure = "" if most is None else f"{'up to ' * (len(ranks) > 1)}{format_gib(most)} GiB "
    words = f"holds {figure}more than predicted{_where(ranks)}"
    return _run_condition(OVER_BUDGET, run, ranks, words, value_bytes=most)


def _growing(run: FleetRun, ranks: list[FleetRank]) -> Condition:
    def seconds(rank: FleetRank) -> float:
        return FULL_WITHIN_SECONDS if rank.process.full_seconds is None else rank.process.full_seconds

    ranks = sorted(ranks, key=seconds)
    full = ranks[0].process.full_seconds
    words = "grows" if full is None else f"grows and fills its GPU in about {duration_text(full)}"
    return _run_condition(GROWING, run, ranks, f"{words}{_where(ranks)}", full_seconds=full)


def _where(ranks: list[FleetRank]) -> str:
    """Return the worst rank and its host, and how many others it is true of."""
    worst = plain_text(ranks[0].label)
    if len(ranks) == 1:
        return f": {worst}"
    hosts = len({rank.host.host for rank in ranks})
    return f" on {len(ranks)} ranks{f' of {hosts} hosts' * (hosts > 1)}, the worst {worst}"


def _run_condition(
    rule: Rule,
    run: FleetRun,
    ranks: list[FleetRank],
    words: str,
    *,
    value_bytes: int | None = None,
    full_seconds: float | None = None,
) -> Condition:
    job, user = plain_text(run.job), plain_text(run.user)
    places = {(rank.host.host, rank.process.device or rank.gpu.shown_label): rank.gpu.uuid or "" for rank in ranks}
    pids = dict.fromkeys((rank.host.host, rank.process.pid) for rank in ranks)
    return Condition(
        rule=rule,
        key=(rule.name, run.key),
        sentence=f"{whose_job(job, user)} {words}",
        gpus=tuple(label for _, label in places),
        hosts=tuple(host for host, _ in places),
        uuids=tuple(places.values()),
        job=job,
        user=user,
        pids=tuple(pid for _, pid in pids if pid is not None),
        value_bytes=value_bytes,
        full_seconds=full_seconds,
    )


@lru_cache(maxsize=4096)  # the same ones at each reading
def _name(host: str) -> str:
    return plain_text(host)


def _because(reason: str | None) -> str:
    return f": {plain_text(reason, MAX_SENTENCE)}" if reason else ""


_GROUP_SECONDS = 15.0
"""What changes within this time is told together: hosts that go away together are missed one after the other."""
_MAX_ALONE = 3
"""More alerts of one kind than this are told as one."""
_MAX_NAMED = 3
"""Hosts that are named in such a sentence."""
_TOGETHER = {
    OVER_BUDGET.name: "jobs hold more than predicted",
    GROWING.name: "jobs grow and may fill their GPUs",
    CANNOT_FIT.name: "pending jobs do not fit",
    UNATTRIBUTED.name: "GPUs have memory of no visible process",
    GPU_LOST.name: "GPUs cannot be read",
    HOST_SILENT.name: "hosts send no readings",
}


@dataclass(slots=True)
class FleetWatch:
    """The alerts of many hosts, and which of them the user knows of.

    Args:
        interval: seconds between two readings.
        chosen: which alerts the user wants, and after how long.
    """

    interval: float
    chosen: ChosenAlerts = field(default_factory=ChosenAlerts)
    _watch: AlertWatch = field(init=False)
    _read: tuple[Fleet, Conditions] | None = field(default=None, init=False)
    """The fleet that was looked at last, and its conditions."""
    _had_gpus: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._watch = AlertWatch(self.interval, group_seconds=_GROUP_SECONDS, chosen=self.chosen)

    @property
    def states(self) -> AlertStates:
        """The alerts."""
        return self._watch.states

    def look_at(self, fleet: Fleet) -> Conditions:
        """Return the conditions of a fleet, which are found once; the part that takes time, for a thread of its own."""
        read = self._read
        if read is None or read[0] is not fleet:
            read = self._read = fleet, find_fleet_conditions(fleet, self._had_gpus)
            self._had_gpus.update(host.host for host in fleet.hosts if host.gpus)
        return read[1]

    def tick(self, fleet: Fleet | None, now: float, quiet_hours: QuietHours | None = None) -> tuple[Announcement, ...]:
        """Return what the user is to be told now; a bounded number of announcements.

        Args:
            fleet: the readings of this moment; None: there are none, or they are paused, so that nothing can be told.
            now: monotonic seconds.
            quiet_hours: the user's; None: none.
        """
        conditions = Conditions(all_unknown=True) if fleet is None else self.look_at(fleet)
        told = self._watch.take(conditions, now, quiet_hours)
        if not told:
            return ()
        listed = {host.host for host in fleet.hosts} if fleet else None
        return tuple(_in_groups(_with_reason(each, listed) for each in told))


def _with_reason(announcement: Announcement, listed: set[str] | None) -> Announcement:
    """Say so of an alert that has cleared only because its hosts are not in the fleet any more."""
    condition = announcement.alert.condition
    if announcement.state == "firing" or listed is None or not listed.isdisjoint(condition.hosts):
        return announcement
    condition = replace(condition, sentence=f"{condition.sentence} (no longer listed)")
    return replace(announcement, alert=replace(announcement.alert, condition=condition))


def _in_groups(announcements: Iterable[Announcement]) -> Iterator[Announcement]:
    groups: dict[tuple[str, str], list[Announcement]] = {}
    for each in announcements:
        groups.setdefault((each.state, each.alert.condition.rule.name), []).append(each)
    for group in groups.values():
        if len(group) > _MAX_ALONE:
            yield _together(group)
        else:
            yield from group


def _together(group: Sequence[Announcement]) -> Announcement:
    """Return one announcement of many alerts of one kind."""
    conditions = [each.alert.condition for each in group]
    first = group[0]
    rule = conditions[0].rule
    hosts = list(dict.fromkeys(host for condition in conditions for host in condition.hosts))
    more = f" and {len(hosts) - _MAX_NAMED} more" if len(hosts) > _MAX_NAMED else ""
    named = ", ".join(map(plain_text, hosts[:_MAX_NAMED]))
    words = _TOGETHER.get(rule.name, f"alerts: {rule.title}")
    condition = replace(
        conditions[0],
        sentence=f"{len(group)} {words}: {named}{more}",
        gpus=tuple(label for each in conditions for label in each.gpus),
        uuids=tuple(uuid for each in conditions for uuid in each.uuids),
        hosts=tuple(host for each in conditions for host in each.hosts),
        job="",
        user="",
        pids=(),
        value_bytes=None,
        full_seconds=None,
    )
    since = min(each.alert.since for each in group)
    return Announcement(replace(first.alert, condition=condition, since=since), first.state, count=len(group))
