"""The alerts screen: all alerts of this machine or of many hosts, and the quiet hours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input

from vramtop.estimator.common import InputError
from vramtop.monitor.alerts import QuietHours, kept_quiet_hours
from vramtop.monitor.storage.settings import QUIET_HOURS

from ...widgets import KeysLine, StaticLines
from ..base import BoardApp, is_complete
from .alert_lines import alert_lines, quiet_line
from .keys import ALERT_KEYS

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from ..base import AlertsApp

_REFRESH_SECONDS = 1.0


class AlertsScreen(Screen[None]):
    """Lists the alerts, those too that nobody is told of in quiet hours."""

    app: AlertsApp
    TITLE = "Alerts"
    AUTO_FOCUS = "#alerts"
    BINDINGS: ClassVar[list[BindingType]] = ALERT_KEYS
    DEFAULT_CSS = """
    AlertsScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    AlertsScreen #quiet { padding: 0 1; text-wrap: wrap; }
    AlertsScreen #field { height: 1; padding: 0 1; display: none; }
    AlertsScreen #label { width: auto; padding: 0 1 0 0; }
    AlertsScreen #hours { width: 1fr; height: 1; }
    AlertsScreen #alerts { height: 1fr; padding: 0 1; margin: 1 0 0 0; scrollbar-size-vertical: 1; }
    """

    def compose(self) -> ComposeResult:
        """The quiet hours, and the alerts below."""
        yield StaticLines(id="title")
        yield StaticLines(id="quiet")
        with Horizontal(id="field"):
            yield StaticLines("quiet hours (Enter keeps them):", id="label")
            yield Input(id="hours", placeholder="22:00-07:00, or off", compact=True)
        with VerticalScroll(id="alerts", can_focus=True):
            yield StaticLines(id="list")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw, and again each second: times go on without readings too."""
        if is_complete(self):
            self._draw()
            self.set_interval(_REFRESH_SECONDS, self._draw)

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def action_leave(self) -> None:
        """Close the field of the quiet hours; if it is closed, leave the screen."""
        if is_complete(self) and self.query_one("#field").display:
            self._close_field()
        else:
            self.app.pop_screen()

    def action_quiet_hours(self) -> None:
        """Ask for the quiet hours."""
        box = self.query_one("#hours", Input)
        box.value = str(self.app.settings.get(QUIET_HOURS, ""))
        self.query_one("#field").display = True
        box.focus()

    @on(Input.Submitted, "#hours")
    def _keep(self, event: Input.Submitted) -> None:
        """Keep the quiet hours, if they can be read."""
        try:
            hours = QuietHours.parse(event.value)
        except InputError as error:
            self.notify(error.message, severity="warning", markup=False)
            return
        self.app.save_setting(QUIET_HOURS, "off" if hours is None else str(hours))
        self._close_field()
        self._draw()

    def _close_field(self) -> None:
        self.query_one("#field").display = False
        self.query_one("#alerts").focus()

    def _draw(self) -> None:
        if not is_complete(self) or not self.size.width:
            return
        watch = self.app.alert_watch
        firing = watch.states.firing_count if watch else 0
        self.query_one("#title", StaticLines).show(Content(f"Alerts · {firing} firing"))
        hours = kept_quiet_hours(str(self.app.settings.get(QUIET_HOURS, "")))
        kept = hours if isinstance(hours, QuietHours) else None
        is_quiet = kept is not None and kept.contains(time.localtime())
        self.query_one("#quiet", StaticLines).show(quiet_line(str(kept) if kept else None, quiet=is_quiet), layout=True)
        scroll = self.query_one("#alerts", VerticalScroll)
        width = self.size.width - 2 - scroll.scrollbar_size_vertical
        recorded = isinstance(self.app, BoardApp) and self.app.feed.banner is not None
        lines = alert_lines(watch, time.time(), width, recorded=recorded)
        self.query_one("#list", StaticLines).show(Content("\n").join(lines), layout=True)
