"""The watch over alerts: what the user is told, once per change."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from .alert_states import Alert, AlertStates, worst_first
from .conditions import Feed, Key, find_conditions

_MAX_STEP_SECONDS = 60.0


class Announcement(msgspec.Struct, frozen=True):
    """A change that the user is told of."""

    alert: Alert
    state: Literal["firing", "resolved"]

    @property
    def sentence(self) -> str:
        """The change in words."""
        sentence = self.alert.condition.sentence
        return sentence if self.state == "firing" else f"resolved: {sentence}"


@dataclass(slots=True)
class AlertWatch:
    """The alerts of this machine, and which of them the user knows of. Not safe for concurrent use.

    Args:
        interval: seconds between two readings, and between two ticks if those are rarer.
        left_out: names of the rules that the user does not want.
    """

    interval: float
    left_out: frozenset[str] = frozenset()
    _has_gpus: bool = False
    """GPUs were read once: losing them is an alert, having none is not."""
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
        self._has_gpus = self._has_gpus or bool(feed.board and feed.board.gpus)
        if self._has_gpus:
            self.states.update(find_conditions(feed), now, time.time())
        firing, known = self.states.firing_by_key, self._known
        begun = [alert for key, alert in firing.items() if key not in known]
        ended = [alert for key, alert in known.items() if key not in firing]
        self._known = firing
        return (
            *(Announcement(alert, "firing") for alert in worst_first(begun)),
            *(Announcement(alert, "resolved") for alert in worst_first(ended)),
        )
