"""The watch over the alerts of many hosts: told in groups, so that a rack that goes away is told once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .alert_watch import AlertWatch, Announcement
from .chosen_alerts import ChosenAlerts
from .conditions import Conditions, plain_text
from .fleet_conditions import find_fleet_conditions
from .rules import CANNOT_FIT, GPU_LOST, GROWING, HOST_SILENT, OVER_BUDGET, UNATTRIBUTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..fleet import Fleet
    from .alert_states import AlertStates
    from .quiet_hours import QuietHours

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
