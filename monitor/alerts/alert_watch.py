"""The watch over a machine's alerts: what its user is told, once per change, and never in their quiet hours."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .alert_states import Alert, AlertStates
from .conditions import find_conditions

if TYPE_CHECKING:
    from .conditions import Feed, Key
    from .quiet_hours import QuietHours

_MAX_STEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """A change that the user is told of."""

    alert: Alert
    state: Literal["firing", "resolved"]

    @property
    def sentence(self) -> str:
        """The change in words."""
        sentence = self.alert.condition.sentence
        return sentence if self.state == "firing" else f"resolved: {sentence}"

    def facts(self) -> dict[str, str]:
        """Return the facts as environment variables; what is unknown, or no part of it, is empty."""
        condition = self.alert.condition
        value, full = condition.value_bytes, condition.full_seconds
        return {
            "VRAMTOP_ALERT": condition.rule.name,
            "VRAMTOP_ALERT_STATE": self.state,
            "VRAMTOP_ALERT_SEVERITY": condition.rule.severity,
            "VRAMTOP_ALERT_SENTENCE": condition.sentence,
            "VRAMTOP_ALERT_SINCE": f"{self.alert.since:.0f}",
            "VRAMTOP_ALERT_BYTES": "" if value is None else str(value),
            "VRAMTOP_ALERT_FULL_SECONDS": "" if full is None else f"{full:.0f}",
            "VRAMTOP_HOST": os.uname().nodename,
            "VRAMTOP_GPU": condition.gpus[0] if condition.gpus else "",
            "VRAMTOP_GPUS": ",".join(condition.gpus),
            "VRAMTOP_GPU_UUIDS": ",".join(condition.uuids),
            "VRAMTOP_JOB": condition.job,
            "VRAMTOP_USER": condition.user,
            "VRAMTOP_PID": str(condition.pids[0]) if condition.pids else "",
            "VRAMTOP_PIDS": ",".join(map(str, condition.pids)),
        }


@dataclass(slots=True)
class AlertWatch:
    """The alerts of this machine, and which of them the user knows of. Not safe for concurrent use.

    Args:
        interval: seconds between two readings, and between two ticks if those are rarer.
        expects_gpus: a machine whose GPUs could never be read is an alert too, not only one that has lost them.
    """

    interval: float
    expects_gpus: bool = False
    _known: dict[Key, Alert] = field(default_factory=dict, init=False)
    """The alerts whose firing was announced, and whose end was not."""
    states: AlertStates = field(init=False)

    def __post_init__(self) -> None:
        self.states = AlertStates(max_step=max(_MAX_STEP_SECONDS, 3 * self.interval))

    def tick(self, feed: Feed, now: float, quiet_hours: QuietHours | None = None) -> tuple[Announcement, ...]:
        """Return what the user is to be told now: each alert when it fires and when it clears.

        What happens in quiet hours is told when they end, if it is still so.

        Args:
            feed: the readings.
            now: monotonic seconds.
            quiet_hours: the user's; None: none.
        """
        self.expects_gpus = self.expects_gpus or bool(feed.board and feed.board.gpus)
        if self.expects_gpus:
            self.states.update(find_conditions(feed), now, time.time())
        if quiet_hours is not None and quiet_hours.contains(time.localtime()):
            return ()
        firing = {alert.condition.key: alert for alert in self.states.firing}
        begun = [Announcement(alert, "firing") for key, alert in firing.items() if key not in self._known]
        ended = [Announcement(alert, "resolved") for key, alert in self._known.items() if key not in firing]
        self._known = firing
        return (*begun, *ended)
