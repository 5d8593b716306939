"""The watch over alerts: what the user is told, once per change."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from .alert_states import Alert, AlertStates, worst_first
from .conditions import Feed, Key, find_conditions

_MAX_STEP_SECONDS = 60.0
_MAX_FACTS = 256
"""GPUs or processes in one environment variable, which may have 128 KiB (``MAX_ARG_STRLEN`` of Linux)."""


class Announcement(msgspec.Struct, frozen=True):
    """A change that the user is told of."""

    alert: Alert
    state: Literal["firing", "resolved"]

    @property
    def sentence(self) -> str:
        """The change in words."""
        sentence = self.alert.condition.sentence
        return sentence if self.state == "firing" else f"resolved: {sentence}"

    def facts(self) -> dict[str, str]:
        """Return the facts as environment variables of the user's command; an unknown fact is an empty text."""
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
            "VRAMTOP_GPUS": ",".join(condition.gpus[:_MAX_FACTS]),
            "VRAMTOP_GPU_UUIDS": ",".join(condition.uuids[:_MAX_FACTS]),
            "VRAMTOP_JOB": condition.job,
            "VRAMTOP_USER": condition.user,
            "VRAMTOP_PID": str(condition.pids[0]) if condition.pids else "",
            "VRAMTOP_PIDS": ",".join(map(str, condition.pids[:_MAX_FACTS])),
        }


@dataclass(slots=True)
class AlertWatch:
    """The alerts of this machine, and which of them the user knows of. Not safe for concurrent use.

    Args:
        interval: seconds between two readings, and between two ticks if those are rarer.
        expects_gpus: a machine whose GPUs could never be read is an alert too, not only one that has lost them.
        left_out: names of the rules that the user does not want.
    """

    interval: float
    expects_gpus: bool = False
    left_out: frozenset[str] = frozenset()
    _known: dict[Key, Alert] = field(default_factory=dict, init=False)
    """The alerts whose firing was announced, and whose end was not."""
    states: AlertStates = field(init=False)

    def __post_init__(self) -> None:
        self.states = AlertStates(max(_MAX_STEP_SECONDS, 3 * self.interval), self.left_out)

    def tick(self, feed: Feed, now: float) -> tuple[Announcement, ...]:
        """Return what the user is to be told now: each alert when it fires and when it clears.

        Args:
            feed: the readings.
            now: monotonic seconds.
        """
        self.expects_gpus = self.expects_gpus or bool(feed.board and feed.board.gpus)
        if self.expects_gpus:
            self.states.update(find_conditions(feed), now, time.time())
        firing, known = self.states.firing_by_key, self._known
        begun = [alert for key, alert in firing.items() if key not in known]
        ended = [alert for key, alert in known.items() if key not in firing]
        self._known = firing
        return (
            *(Announcement(alert, "firing") for alert in worst_first(begun)),
            *(Announcement(alert, "resolved") for alert in worst_first(ended)),
        )
