"""Signals to the user beside the screens: a notice, a bell or a desktop notification."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..draw.text_output import printable
from ..keys import shown_key
from ..tty.textual_private import write_to_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.notifications import SeverityLevel

    from vramtop.monitor.alerts.alert_watch import Announcement
    from vramtop.monitor.board.board import PendingRow

    from ..screens.base import BoardApp
    from .options import AppOptions


_MAX_TOLD = 3
"""Alerts of one moment that a notice has in full."""


def desktop_sequence(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the control sequence for a desktop notification by the terminal, which works over SSH too.

    OSC 777 for VTE, urxvt and foot, otherwise OSC 9 (iTerm2, kitty, WezTerm, Ghostty, Windows Terminal). Inside tmux,
    which must allow it (``allow-passthrough``), and GNU screen it is wrapped for the outer terminal.
    """
    words = printable(text).replace(";", ",")
    supports_777 = "VTE_VERSION" in environ or environ.get("TERM", "").startswith(("rxvt", "foot"))
    sequence = f"\x1b]777;notify;vramtop;{words}\x07" if supports_777 else f"\x1b]9;{words}\x07"
    if "TMUX" in environ:
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if "STY" in environ:
        return f"\x1bP{sequence}\x1b\\"
    return sequence


class UserSignals:
    """Tells the user of pending jobs whose verdict changes, and of alerts.

    Args:
        app: shows the notices.
        options: how they are told.
    """

    def __init__(self, app: BoardApp, options: AppOptions) -> None:
        self._app, self._options = app, options
        self._fits_changed: dict[str, float] = {}
        """When the verdict of each pending job last changed, by its label."""
        self._started_at = options.clock()

    def show_pending(self, pending: Sequence[PendingRow]) -> None:
        """Tell of each pending job that starts or ceases to fit."""
        for row in pending:
            label, changed_at = row.job.label, row.fits_changed_at
            if changed_at is None or self._fits_changed.get(label) == changed_at:
                continue
            self._fits_changed[label] = changed_at
            sentence = f"{label} fits now" if row.fits else f"{label} no longer fits"
            self._app.notify(sentence, markup=False)
            self._signal(sentence)

    def tick(self, board_at: float | None, *, interval: float, failure: str | None) -> None:
        """Tell of each alert that fires or clears; called about once a second while readings are not paused.

        Args:
            board_at: arrival of the app's board, by the clock of the options; None: there was none.
            interval: seconds between two readings.
            failure: why there are no readings.
        """
        from vramtop.monitor.alerts.alert_watch import AlertWatch
        from vramtop.monitor.alerts.conditions import Feed
        from vramtop.monitor.alerts.rules import alerts_off

        now, app = self._options.clock(), self._app
        if app.alert_watch is None:  # only now: start-up does not import it
            app.alert_watch = AlertWatch(interval, left_out=alerts_off(app.settings))
        age = now - (self._started_at if board_at is None else board_at)
        feed = Feed(board=app.board, age_seconds=age, interval=interval, failure=failure)
        self._tell(app.alert_watch.tick(feed, now))

    def _tell(self, announcements: Sequence[Announcement]) -> None:
        if not announcements:
            return
        words = [each.sentence for each in announcements[:_MAX_TOLD]]
        if len(announcements) > _MAX_TOLD:
            words.append(f"{len(announcements) - _MAX_TOLD} more: {shown_key('dashboard.alerts')} lists the alerts")
        firing = {each.alert.condition.rule.severity for each in announcements if each.state == "firing"}
        severity: SeverityLevel = (
            "error" if "critical" in firing else "warning" if "warning" in firing else "information"
        )
        self._app.notify("\n".join(words), severity=severity, markup=False)
        first = announcements[0].sentence
        others = len(announcements) - 1
        self._signal(first if not others else f"{first} (and {others} more)")

    def _signal(self, sentence: str) -> None:
        if self._options.signal_alert == "bell":
            self._app.bell()
        elif self._options.signal_alert == "desktop":
            write_to_terminal(self._app, desktop_sequence(sentence))
