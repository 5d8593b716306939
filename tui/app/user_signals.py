"""Signals to the user beside the screens: a notice, a bell or a desktop notification, and commands of their own.

In their quiet hours they are told nothing; a command for a job that fits is started all the same.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal

from vramtop.monitor.storage.settings import QUIET_HOURS

from ..draw import printable
from ..keys import shown_key
from ..tty import write_to_terminal
from .fit_events import FitEvents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.notifications import SeverityLevel

    from vramtop.monitor.alerts import Announcement, QuietHours
    from vramtop.monitor.board import PendingRow

    from ..background import CommandQueue
    from .app import VramtopApp
    from .fleet_app import FleetApp
    from .options import AppOptions

Signal = Literal["none", "bell", "desktop"]
ALERT_COMMAND_SECONDS = 60.0
"""Longest time that a command for an alert may take."""
_MAX_TOLD = 3
"""Alerts of one moment that a notice has in full."""


def desktop_sequence(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the control sequence for a desktop notification by the terminal, which works over SSH too.

    OSC 777 for VTE, urxvt and foot, otherwise OSC 9 (iTerm2, kitty, WezTerm, Ghostty, Windows Terminal). Inside tmux,
    which must allow it (``allow-passthrough``), and GNU screen it is wrapped for the outer terminal.
    """
    words = printable(text).replace(";", ",")
    term = environ.get("TERM", "")
    supports_777 = "VTE_VERSION" in environ or term.startswith(("rxvt", "foot"))
    sequence = f"\x1b]777;notify;vramtop;{words}\x07" if supports_777 else f"\x1b]9;{words}\x07"
    if "TMUX" in environ:
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if "STY" in environ:
        return f"\x1bP{sequence}\x1b\\"
    return sequence


class AlertSignals:
    """Tells the user of alerts.

    Args:
        app: shows the notices; its settings have the quiet hours.
        signal: how they are told besides.
        command: a shell command of theirs.
    """

    def __init__(self, app: VramtopApp | FleetApp, signal: Signal, command: str | None) -> None:
        self._app, self._alert_signal, self._on_alert = app, signal, command
        self._commands: CommandQueue | None = None
        self._has_complained = False
        """The user was told that the kept quiet hours cannot be read."""

    def close(self) -> None:
        """End the command that runs for an alert."""
        if self._commands is not None:
            self._commands.end()

    def _tell(self, announcements: Sequence[Announcement]) -> None:
        if not announcements:
            return
        words = [each.sentence for each in announcements[:_MAX_TOLD]]
        if len(announcements) > _MAX_TOLD:
            words.append(f"{len(announcements) - _MAX_TOLD} more: {shown_key('dashboard.alerts')} lists the alerts")
        self._app.notify("\n".join(words), severity=_notice_severity(announcements), markup=False)
        first = announcements[0].sentence
        others = len(announcements) - 1
        self._signal(self._alert_signal, first if not others else f"{first} (and {others} more)")
        if self._on_alert:
            self._start(self._on_alert, announcements)

    def _start(self, command: str, announcements: Sequence[Announcement]) -> None:
        if self._commands is None:
            from ..background import CommandQueue, UserCommand

            self._commands = CommandQueue(
                UserCommand("--on-alert", command, self._app.show_notice, seconds=ALERT_COMMAND_SECONDS)
            )
        for each in announcements:
            self._commands.add(each.facts())

    def _signal(self, signal: Signal, sentence: str) -> None:
        if signal == "bell":
            self._app.bell()
        elif signal == "desktop":
            write_to_terminal(self._app, desktop_sequence(sentence))

    def _quiet_hours(self) -> QuietHours | None:
        text = str(self._app.settings.get(QUIET_HOURS, ""))
        if not text:
            return None
        from vramtop.monitor.alerts import kept_quiet_hours

        hours = kept_quiet_hours(text)
        if isinstance(hours, str):
            if not self._has_complained:
                self._has_complained = True
                self._app.notify(f"The quiet hours of your settings: {hours}", severity="warning", markup=False)
            return None
        return hours

    def _is_quiet(self) -> bool:
        hours = self._quiet_hours()
        return hours is not None and hours.contains(time.localtime())


class UserSignals(AlertSignals):
    """Tells the user of pending jobs whose verdict changes, and of alerts.

    Args:
        app: shows the notices; its settings have the quiet hours.
        options: how they are told, and their commands.
    """

    def __init__(self, app: VramtopApp, options: AppOptions) -> None:
        super().__init__(app, options.signal_alert, options.on_alert)
        self._board_app, self._options = app, options
        self._fit_events = FitEvents(command=options.on_fit, report=app.show_notice)
        self._started_at = options.clock()

    def show_pending(self, pending: Sequence[PendingRow]) -> None:
        """Tell of each pending job that starts or ceases to fit."""
        for sentence in self._fit_events.update(pending):
            if not self._is_quiet():
                self._app.notify(sentence, markup=False)
                self._signal(self._options.signal_fit, sentence)

    def tick(self, board_at: float | None, *, interval: float, failure: str | None) -> None:
        """Tell of each alert that fires or clears; called about once a second while readings are not paused.

        Args:
            board_at: arrival of the app's board, by the clock of the options; None: there was none.
            interval: seconds between two readings.
            failure: why there are no readings.
        """
        from vramtop.monitor.alerts import AlertWatch, Feed
        from vramtop.monitor.alerts.chosen_alerts import chosen_alerts

        now, app = self._options.clock(), self._board_app
        if app.alert_watch is None:  # only now: start-up does not import it
            app.alert_watch = AlertWatch(interval, chosen=chosen_alerts(app.settings))
        age = now - (self._started_at if board_at is None else board_at)
        feed = Feed(board=app.board, age_seconds=age, interval=interval, failure=failure)
        self._tell(app.alert_watch.tick(feed, now, self._quiet_hours()))


def _notice_severity(announcements: Sequence[Announcement]) -> SeverityLevel:
    """Return the severity of a notice: that of the worst alert that fires."""
    firing = {each.alert.condition.rule.severity for each in announcements if each.state == "firing"}
    return "error" if "critical" in firing else "warning" if "warning" in firing else "information"
