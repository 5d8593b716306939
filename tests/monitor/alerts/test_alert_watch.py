"""Hysteresis, and what the user is told when: once per change, not in quiet hours, and afterwards what lasts."""

import time
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.alerts import alert_watch
from vramtop.monitor.alerts.alert_watch import (
    GPU_LOST,
    GROWING,
    NO_READINGS,
    OVER_BUDGET,
    AlertWatch,
    Condition,
    Conditions,
    Feed,
    QuietHours,
    Rule,
    alerts_off,
    kept_quiet_hours,
)

FEED = Feed(board=None, age_seconds=0.0, interval=1.0)
NIGHT = QuietHours.parse("22:00-07:00")


def condition(rule: Rule = OVER_BUDGET, about: str = "sft", gpus: tuple[str, ...] = ("0",)) -> Condition:
    return Condition(rule=rule, key=(rule.name, about), sentence=f"{about} is over", gpus=gpus, job=about)


class Told:
    """A watch over conditions that the test gives, at times that it gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.watch = AlertWatch(1.0, expects_gpus=True)
        self.now = 0.0
        self.hour = 12

    def after(self, seconds: float, *present: Condition, steps: int = 1, **unknown: Any) -> list[tuple[str, str]]:
        """What is told when these conditions hold for some seconds, in steps."""
        conditions = Conditions(present=present, **unknown)
        self._patch.setattr(alert_watch, "find_conditions", lambda _: conditions)
        self._patch.setattr(
            alert_watch.time, "localtime", lambda: time.struct_time((2026, 1, 1, self.hour, 0, 0, 0, 1, 0))
        )
        told = []
        for _ in range(steps):
            self.now += seconds / steps
            told += [(each.state, each.alert.condition.job) for each in self.watch.tick(FEED, self.now, NIGHT)]
        return told


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_it_fires_after_it_has_held_and_clears_after_it_was_gone(told: Told) -> None:
    over = condition()
    assert told.after(1, over) == []
    assert told.after(290, over, steps=10) == []
    (waiting,) = told.watch.states.waiting
    assert waiting.seconds_left == pytest.approx(10)
    assert told.after(10, over) == [("firing", "sft")]
    assert told.after(600, over, steps=20) == []  # said once
    assert told.after(30) == []
    assert told.after(30, over) == []  # it came back
    assert told.after(59, steps=2) == []
    assert len(told.watch.states.firing) == 1
    assert told.after(60, steps=2) == [("resolved", "sft")]
    assert told.watch.states.firing == ()
    assert [alert.condition.job for alert in told.watch.states.resolved] == ["sft"]


def test_a_break_starts_the_time_again(told: Told) -> None:
    over = condition()
    told.after(1, over)
    assert told.after(280, over, steps=10) == []
    told.after(1)
    assert told.after(280, over, steps=10) == []
    assert told.after(300, over, steps=10) == [("firing", "sft")]


def test_time_that_was_not_seen_does_not_count(told: Told) -> None:
    over = condition()
    told.after(1, over)
    assert told.after(3600, over) == []  # the machine slept
    assert told.after(230, over, steps=10) == []
    assert told.after(11, over) == [("firing", "sft")]


def test_what_cannot_be_told_changes_nothing(told: Told) -> None:
    over, lost, stale = condition(), condition(GPU_LOST, "GPU 0"), condition(NO_READINGS, "readings", ())
    told.after(1, over)
    assert told.after(300, over, steps=10) == [("firing", "sft")]
    assert told.after(300, lost, steps=10, unknown_gpus=frozenset("0")) == [("firing", "GPU 0")]
    assert told.after(300, stale, steps=10, all_unknown=True) == [("firing", "readings")]
    assert {alert.condition.job for alert in told.watch.states.firing} == {"sft", "GPU 0", "readings"}
    assert [alert.condition.job for alert in told.watch.states.firing][-1] == "sft"  # worst first
    assert set(told.after(300, steps=10)) == {("resolved", job) for job in ("sft", "GPU 0", "readings")}


def test_in_quiet_hours_alerts_are_listed_and_what_lasts_is_told_afterwards(told: Told) -> None:
    first, short, lasting = condition(about="first"), condition(about="short"), condition(about="lasting")
    told.after(1, first)
    assert told.after(300, first, steps=10) == [("firing", "first")]
    told.hour = 23
    told.after(1, short, lasting)
    assert told.after(400, short, lasting, steps=10) == []
    assert {alert.condition.job for alert in told.watch.states.firing} == {"short", "lasting"}
    assert told.after(400, lasting, steps=10) == []
    told.hour = 7
    assert told.after(1, lasting) == [("firing", "lasting"), ("resolved", "first")]
    assert told.after(1, lasting) == []


@pytest.mark.parametrize(
    ("text", "quiet", "loud"),
    [
        ("22:00-07:00", [(22, 0), (0, 0), (6, 59)], [(7, 0), (21, 59)]),
        ("9:30 - 10:00", [(9, 30), (9, 59)], [(9, 29), (10, 0), (0, 0)]),
        ("00:00-23:59", [(0, 0), (23, 58)], [(23, 59)]),
    ],
)
def test_quiet_hours(text: str, quiet: list[tuple[int, int]], loud: list[tuple[int, int]]) -> None:
    hours = QuietHours.parse(text)
    assert hours is not None
    assert QuietHours.parse(str(hours)) == hours
    for times, expected in ((quiet, True), (loud, False)):
        for hour, minute in times:
            assert hours.contains(time.struct_time((2026, 1, 1, hour, minute, 0, 0, 1, 0))) == expected


@pytest.mark.parametrize("text", ["22-7", "24:00-07:00", "22:00", "22:60-07:00", "07:00-07:00", "always"])
def test_other_quiet_hours_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        QuietHours.parse(text)
    assert text in str(kept_quiet_hours(text))


def test_no_quiet_hours() -> None:
    assert QuietHours.parse("off") is None
    assert kept_quiet_hours("") is None


def test_settings_choose_which_alerts_there_are(told: Told) -> None:
    off = alerts_off({"alerts.off": ("growing",), "dashboard.view": "runs"})
    told.watch = AlertWatch(1.0, expects_gpus=True, left_out=off)
    over, growing = condition(), condition(GROWING, "leak")
    assert told.after(1, over, growing) == []
    (waiting,) = told.watch.states.waiting
    assert waiting.seconds_left == pytest.approx(300)
