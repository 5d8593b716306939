"""The watch over alerts: what the user is told, once per change, and never in their quiet hours."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .alert_states import Alert, AlertStates, worst_first
from .chosen_alerts import ChosenAlerts
from .conditions import find_conditions, plain_text

if TYPE_CHECKING:
    from .conditions import Conditions, Feed, Key
    from .quiet_hours import QuietHours

_MAX_STEP_SECONDS = 60.0
_MAX_FACTS = 256
"""Hosts, GPUs or processes in one environment variable, which may have 128 KiB (``MAX_ARG_STRLEN`` of Linux)."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A change that the user is told of."""

    alert: Alert
    state: Literal["firing", "resolved"]
    count: int = 1
    """Alerts that it tells of together."""

    @property
    def sentence(self) -> str:
        """The change in words."""
        sentence = self.alert.condition.sentence
        return sentence if self.state == "firing" else f"resolved: {sentence}"

    def facts(self) -> dict[str, str]:
        """Return the facts as environment variables of the user's command; an unknown fact is an empty text."""
        condition = self.alert.condition
        value, full = condition.value_bytes, condition.full_seconds
        hosts = [plain_text(host) for host in condition.hosts[:_MAX_FACTS]] or [os.uname().nodename]
        return {
            "VRAMTOP_ALERT": condition.rule.name,
            "VRAMTOP_ALERT_STATE": self.state,
            "VRAMTOP_ALERT_SEVERITY": condition.rule.severity,
            "VRAMTOP_ALERT_SENTENCE": condition.sentence,
            "VRAMTOP_ALERT_COUNT": str(self.count),
            "VRAMTOP_ALERT_SINCE": f"{self.alert.since:.0f}",
            "VRAMTOP_ALERT_BYTES": "" if value is None else str(value),
            "VRAMTOP_ALERT_FULL_SECONDS": "" if full is None else f"{full:.0f}",
            "VRAMTOP_HOST": hosts[0],
            "VRAMTOP_HOSTS": ",".join(hosts),
            "VRAMTOP_GPU": condition.gpus[0] if condition.gpus else "",
            "VRAMTOP_GPUS": ",".join(condition.gpus[:_MAX_FACTS]),
            "VRAMTOP_GPU_UUIDS": ",".join(condition.uuids[:_MAX_FACTS]),
            "VRAMTOP_JOB": condition.job,
            "VRAMTOP_USER": condition.user,
            "VRAMTOP_PID": str(condition.pids[0]) if condition.pids else "",
            "VRAMTOP_PIDS": ",".join(map(str, condition.pids[:_MAX_FACTS])),
        }


@dataclass(slots=True)
class AlertWatch:
    """The alerts of this machine or of many hosts, and which of them the user knows of. Not safe for concurrent use.

    Args:
        interval: seconds between two readings, and between two ticks if those are rarer.
        expects_gpus: a machine whose GPUs could never be read is an alert too, not only one that has lost them.
        group_seconds: what changes within this time is told together.
        chosen: which alerts the user wants, and after how long.
    """

    interval: float
    expects_gpus: bool = False
    group_seconds: float = 0.0
    chosen: ChosenAlerts = field(default_factory=ChosenAlerts)
    _known: dict[Key, Alert] = field(default_factory=dict, init=False)
    """The alerts whose firing was announced, and whose end was not."""
    states: AlertStates = field(init=False)
    _changed_at: float | None = field(default=None, init=False)
    """Monotonic seconds of the first change that the user was not told of; None: there is none."""

    def __post_init__(self) -> None:
        self.states = AlertStates(max(_MAX_STEP_SECONDS, 3 * self.interval), self.chosen)

    def tick(self, feed: Feed, now: float, quiet_hours: QuietHours | None = None) -> tuple[Announcement, ...]:
        """Return what the user is to be told now: each alert when it fires and when it clears.

        What happens in quiet hours is told when they end, if it is still so.

        Args:
            feed: the readings.
            now: monotonic seconds.
            quiet_hours: the user's; None: none.
        """
        self.expects_gpus = self.expects_gpus or bool(feed.board and feed.board.gpus)
        return self.take(find_conditions(feed) if self.expects_gpus else None, now, quiet_hours)

    def take(
        self, conditions: Conditions | None, now: float, quiet_hours: QuietHours | None = None
    ) -> tuple[Announcement, ...]:
        """Take note of what holds now, and return what the user is to be told, as ``tick`` does.

        Args:
            conditions: at this moment; None: they are not watched yet.
            now: monotonic seconds.
            quiet_hours: the user's; None: none.
        """
        if conditions is not None:
            self.states.update(conditions, now, time.time())
        if quiet_hours is not None and quiet_hours.contains(time.localtime()):
            return ()
        firing = self.states.firing_by_key
        begun = [alert for key, alert in firing.items() if key not in self._known]
        ended = [alert for key, alert in self._known.items() if key not in firing]
        if not begun and not ended:
            self._known, self._changed_at = firing, None
            return ()
        self._changed_at = now if self._changed_at is None else self._changed_at
        if now - self._changed_at < self.group_seconds:
            return ()
        self._known, self._changed_at = firing, None
        return (
            *(Announcement(alert, "firing") for alert in worst_first(begun)),
            *(Announcement(alert, "resolved") for alert in worst_first(ended)),
        )
