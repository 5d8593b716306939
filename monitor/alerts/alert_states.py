"""States of the alerts: a condition fires after it has held for a while, and clears after it was gone for a while."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace

from .rules import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .conditions import Condition, Conditions, Key


_MAX_RESOLVED = 20


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert, keyed by what it is about."""

    condition: Condition
    """The condition as it was when it held last."""
    since: float
    """Unix seconds at which the condition was first seen."""
    held_seconds: float = 0.0
    """Time for which it has held without a break, as far as there were readings."""
    gone_seconds: float = 0.0
    """Time for which it has been gone since it fired."""
    firing: bool = False
    resolved_at: float | None = None
    """Unix seconds at which it cleared; None: it has not."""

    @property
    def seconds_left(self) -> float:
        """Time for which the condition must hold on until the alert fires."""
        return max(0.0, self.condition.fires_after - self.held_seconds)


@dataclass(slots=True)
class AlertStates:
    """The alerts of one machine. Not safe for concurrent use.

    Args:
        max_step: longest time between two updates that counts: what was in between, such as a suspended machine,
            was not seen.
        left_out: names of the rules that the user does not want.
    """

    max_step: float
    left_out: frozenset[str] = frozenset()
    _alerts: dict[Key, Alert] = field(default_factory=dict, init=False)
    _present: frozenset[Key] = frozenset()
    """Keys of the conditions that held at the last update."""
    _absent: frozenset[Key] = frozenset()
    """Keys of the alerts whose condition did not hold at the last update, as far as that could be told."""
    _updated_at: float | None = None
    _resolved: deque[Alert] = field(default_factory=lambda: deque(maxlen=_MAX_RESOLVED), init=False)

    def update(self, conditions: Conditions, now: float, time: float) -> None:
        """Take note of what holds now.

        Args:
            conditions: at this moment.
            now: monotonic seconds.
            time: Unix seconds.
        """
        step = 0.0 if self._updated_at is None else min(max(0.0, now - self._updated_at), self.max_step)
        self._updated_at = now
        present = {each.key: each for each in conditions.present if each.rule.name not in self.left_out}
        gone = {
            key: alert
            for key, alert in self._alerts.items()
            if key not in present and not conditions.is_unknown(alert.condition)
        }
        for key, condition in present.items():
            before = self._alerts.get(key) or Alert(condition=condition, since=time)
            if before.firing and before.condition is condition and not before.gone_seconds:
                continue  # the same reading again
            held = before.held_seconds + (step if key in self._present else 0.0)
            firing = before.firing or held >= condition.fires_after
            self._alerts[key] = replace(before, condition=condition, held_seconds=held, gone_seconds=0.0, firing=firing)
        for key, alert in gone.items():
            seconds = alert.gone_seconds + (step if key in self._absent else 0.0)
            if alert.firing and seconds < alert.condition.rule.clears_after:
                self._alerts[key] = replace(alert, gone_seconds=seconds)
                continue
            del self._alerts[key]
            if alert.firing:
                self._resolved.append(replace(alert, firing=False, resolved_at=time))
        self._present, self._absent = frozenset(present), frozenset(gone)

    @property
    def firing(self) -> tuple[Alert, ...]:
        """The alerts that fire, worst first."""
        return worst_first(self.firing_by_key.values())

    @property
    def firing_by_key(self) -> dict[Key, Alert]:
        """The alerts that fire, in no order."""
        return {key: alert for key, alert in self._alerts.items() if alert.firing}

    @property
    def waiting(self) -> tuple[Alert, ...]:
        """Conditions that hold, though not for long enough yet."""
        return worst_first(alert for alert in self._alerts.values() if not alert.firing)

    @property
    def resolved(self) -> tuple[Alert, ...]:
        """The alerts that cleared last, the latest first."""
        return tuple(reversed(self._resolved))


def worst_first(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """Return alerts in the order of their severity, then of their age."""

    def order(alert: Alert) -> tuple[int, float, str]:
        return SEVERITIES.index(alert.condition.rule.severity), alert.since, str(alert.condition.key)

    return tuple(sorted(alerts, key=order))
