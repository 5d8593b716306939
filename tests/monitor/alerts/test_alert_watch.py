"""Hysteresis, and what the user is told when: once per change."""

from typing import Any

import pytest
from builders import make_gpu, make_snapshot, make_watchlist

from vramtop.estimator.common.records import replace
from vramtop.monitor.alerts import alert_watch
from vramtop.monitor.alerts.alert_watch import AlertWatch
from vramtop.monitor.alerts.conditions import Condition, Conditions, Feed
from vramtop.monitor.alerts.rules import GPU_LOST, GROWING, NO_READINGS, OVER_BUDGET, Rule, alerts_off

BOARD = make_watchlist().update(make_snapshot([make_gpu()]))
FEED = Feed(board=BOARD, age_seconds=0.0, interval=1.0)


def condition(rule: Rule = OVER_BUDGET, about: str = "sft", gpus: tuple[str, ...] = ("0",)) -> Condition:
    return Condition(rule=rule, key=(rule.name, about), sentence=about, gpus=gpus)


class Told:
    """A watch over conditions that the test gives, at times that it gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.watch = AlertWatch(1.0)
        self.now = 0.0

    def after(self, seconds: float, *present: Condition, steps: int = 1, **unknown: Any) -> list[tuple[str, str]]:
        """What is told when these conditions hold for some seconds, in steps."""
        conditions = Conditions(present=present, **unknown)
        self._patch.setattr(alert_watch, "find_conditions", lambda _: conditions)
        told = []
        for _ in range(steps):
            self.now += seconds / steps
            told += [(each.state, each.alert.condition.sentence) for each in self.watch.tick(FEED, self.now)]
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
    assert [alert.condition.sentence for alert in told.watch.states.resolved] == ["sft"]


@pytest.mark.parametrize(
    ("full_seconds", "has_budget", "fires"), [(3600.0, True, False), (20.0, False, False), (20.0, True, True)]
)
def test_growth_that_fills_the_gpu_before_the_alert_would_fire_fires_early_unless_it_may_be_loading(
    told: Told, full_seconds: float, has_budget: bool, fires: bool
) -> None:
    grows = replace(condition(GROWING), full_seconds=full_seconds, has_budget=has_budget)
    assert told.after(1, grows) == []
    assert told.after(11, grows, steps=11) == [("firing", "sft")] * fires


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
    assert {alert.condition.sentence for alert in told.watch.states.firing} == {"sft", "GPU 0", "readings"}
    assert [alert.condition.sentence for alert in told.watch.states.firing][-1] == "sft"  # worst first
    assert set(told.after(300, steps=10)) == {("resolved", job) for job in ("sft", "GPU 0", "readings")}


def test_settings_choose_which_alerts_there_are(told: Told) -> None:
    off = alerts_off({"alerts.off": ("growing",), "dashboard.view": "runs"})
    told.watch = AlertWatch(1.0, left_out=off)
    over, growing = condition(), condition(GROWING, "leak")
    assert told.after(1, over, growing) == []
    (waiting,) = told.watch.states.waiting
    assert waiting.seconds_left == pytest.approx(300)
