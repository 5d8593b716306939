"""The watch over many hosts: hysteresis, outages, and how much is told at once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from vramtop.monitor.alerts.alert_watch import Announcement
from vramtop.monitor.alerts.fleet_watch import FleetWatch
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetProcess, HostReading

GIB = 2**30


def host(name: str, status: str = "on_budget", **changes: Any) -> HostReading:
    process = FleetProcess(pid=7, used_bytes=25 * GIB, budget_bytes=20 * GIB, job="sft", user="ann", status=status)
    gpu = FleetGpu(index=0, uuid=f"GPU-{name}", used_bytes=25 * GIB, unattributed_bytes=0, processes=(process,))
    return HostReading(**{"host": name, "time": 1.0, "since": 1.0, "gpus": (gpu,), **changes})


def gone(host: HostReading) -> HostReading:
    return msgspec.structs.replace(host, state="silent", reason="no reading arrives")


class Told:
    """A watch whose time the test moves."""

    def __init__(self) -> None:
        self.watch, self.now = FleetWatch(5.0), 0.0

    def after(self, seconds: int, hosts: Sequence[HostReading] | None) -> list[Announcement]:
        """What is told while these hosts are as they are for some seconds; None: there are no readings."""
        told: list[Announcement] = []
        for _ in range(seconds // 5):
            self.now += 5
            told += self.watch.tick(None if hosts is None else Fleet(self.now, tuple(hosts)), self.now)
        return told

    def sentences(self, seconds: int, hosts: Sequence[HostReading] | None) -> list[str]:
        return [each.sentence for each in self.after(seconds, hosts)]


@pytest.fixture
def told() -> Told:
    return Told()


OVER = "sft of ann holds 5.0 GiB more than predicted: pid 7 on a, GPU 0"


def test_it_fires_after_it_has_held_and_clears_after_it_was_gone(told: Told) -> None:
    bad, good = [host("a", "over"), host("b")], [host("a"), host("b")]
    assert told.sentences(300, bad) == []
    assert told.sentences(60, bad) == [OVER]
    assert told.sentences(600, bad) == []  # said once
    assert told.sentences(45, good) == []
    assert told.sentences(60, good) == [f"resolved: {OVER}"]


def test_an_outage_neither_raises_nor_ends_an_alert_and_its_time_does_not_count(told: Told) -> None:
    bad = [host("a", "over"), host("b")]
    assert told.after(200, bad) == []
    assert told.after(3600, None) == []
    assert told.after(95, bad) == []
    assert told.sentences(60, bad) == [OVER]
    assert told.after(3600, None) == []
    assert told.after(3600, [gone(each) for each in bad[:1]] + bad[1:])[0].alert.condition.rule.name == (
        "VramtopHostSilent"
    )
    assert {alert.condition.sentence for alert in told.watch.states.firing} >= {OVER}  # it cannot be told any more


def test_a_silent_host_is_told_of_after_a_minute_and_when_it_is_back(told: Told) -> None:
    hosts = [host("a"), host("b")]
    assert told.after(60, hosts) == []
    assert told.after(55, [gone(hosts[0]), hosts[1]]) == []
    (silent,) = told.after(60, [gone(hosts[0]), hosts[1]])
    assert silent.sentence == "a is silent: no reading arrives"
    assert silent.facts()["VRAMTOP_HOST"] == silent.facts()["VRAMTOP_HOSTS"] == "a"
    assert told.sentences(60, hosts) == ["resolved: a is silent: no reading arrives"]


def test_a_rack_that_goes_away_host_by_host_is_told_once_with_a_count(told: Told) -> None:
    rack = [host(f"node{at:02}") for at in range(40)]
    others = [host("login")]
    assert told.after(60, rack + others) == []
    for missed in (10, 25):
        assert told.after(5, [*map(gone, rack[:missed]), *rack[missed:], *others]) == []
    (silent,) = told.after(300, [*map(gone, rack), *others])
    assert silent.sentence == "40 hosts send no readings: node00, node01, node02 and 37 more"
    facts = silent.facts()
    assert (facts["VRAMTOP_ALERT_COUNT"], facts["VRAMTOP_HOST"]) == ("40", "node00")
    assert facts["VRAMTOP_HOSTS"].count(",") == 39
    (back,) = told.after(60, rack + others)
    assert (back.state, back.count) == ("resolved", 40)


def test_many_alerts_of_each_kind_at_once_stay_few_announcements(told: Told) -> None:
    hosts = [host(f"n{at}", "over") for at in range(260)] + [gone(host(f"s{at}")) for at in range(260)]
    assert told.after(55, hosts) == []  # nothing at the first readings
    announced = told.after(300, hosts)
    assert [(each.count, each.alert.condition.rule.title) for each in announced] == [
        (260, "host silent"),
        (260, "over its budget"),
    ]
    facts = announced[1].facts()
    assert (facts["VRAMTOP_JOB"], facts["VRAMTOP_PID"], facts["VRAMTOP_ALERT_BYTES"]) == ("", "", "")
    assert facts["VRAMTOP_GPUS"].count(",") == facts["VRAMTOP_HOSTS"].count(",") == 255  # as much as may be passed on


def test_a_host_that_is_no_longer_listed_ends_its_alerts_and_says_so(told: Told) -> None:
    assert told.sentences(120, [gone(host("a")), host("b")]) == ["a is silent: no reading arrives"]
    assert told.sentences(60, [host("b")]) == ["resolved: a is silent: no reading arrives (no longer listed)"]


def test_a_fleet_is_looked_at_once(told: Told) -> None:
    fleet = Fleet(1.0, (host("a"),))
    assert told.watch.look_at(fleet) is told.watch.look_at(fleet)
    lost = Fleet(2.0, (host("a", gpus=(), faults=("there is no NVIDIA driver",)),))
    assert [each.sentence for each in told.watch.look_at(lost).present] == [
        "a has no GPU that can be read: there is no NVIDIA driver"
    ]
