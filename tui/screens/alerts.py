"""The alerts screen: what is wrong now, what may become an alert, and what has cleared."""

from __future__ import annotations

import time
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content

from ..draw.labels import MUTED, alarm, format_duration
from ..draw.palette import colour_of, on_colour
from ..draw.text_output import printable
from ..keys import bind
from ..widgets.keys_line import KeysLine
from ..widgets.static_lines import StaticLines, TitleLine
from .base import BoardApp, DrawnScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.alerts.alert_states import Alert
    from vramtop.monitor.alerts.alert_watch import AlertWatch


_INDENT = "   "
_MAX_LISTED = 100
"""Alerts of one state that are listed."""


def alert_lines(watch: AlertWatch | None, now: float, width: int, *, recorded: bool = False) -> list[Content]:
    """Return all alerts in lines of at most this width.

    Args:
        watch: the alerts; None: they have not been looked for yet.
        now: Unix seconds.
        width: cells of a line.
        recorded: a recording is played, which raises none.
    """
    if watch is None:
        words = (
            "A recording raises no alerts; alerts are about this machine now." if recorded else "looking for alerts …"
        )
        return [Content.styled(words, MUTED)]

    def since(alert: Alert) -> str:
        cleared = f"; cleared for {format_duration(alert.gone_seconds)}" if alert.gone_seconds else ""
        return f"since {_clock(alert.since)}, {format_duration(max(0.0, now - alert.since))}{cleared}"

    def left(alert: Alert) -> str:
        return f"becomes an alert in {format_duration(alert.seconds_left)} if it lasts"

    def span(alert: Alert) -> str:
        return f"{_clock(alert.since)} to {_clock(alert.resolved_at or now)}"

    states = watch.states
    lines = [*_listed("Firing", states.firing, since, width)]
    if not states.firing:
        lines.append(Content.styled("none", "$text-success"))
    for title, alerts, when in (("Not yet alerts", states.waiting, left), ("Cleared", states.resolved, span)):
        lines += [Content(), *_listed(title, alerts, when, width)] if alerts else []
    return lines


def _listed(title: str, alerts: Sequence[Alert], when: Callable[[Alert], str], width: int) -> Iterator[Content]:
    """Yield alerts below a title, each with its kind and time in one line, and its sentence below."""
    yield Content.styled(title, "bold underline")
    for alert in alerts[:_MAX_LISTED]:
        rule = alert.condition.rule
        style = "bold"
        if alert.firing:
            badges = {"critical": f"bold {on_colour(colour_of('bad'))}", "warning": alarm()}
            style = badges.get(rule.severity, "bold reverse")
        yield Content.assemble((f" {rule.title} ", style), f"  {when(alert)}")
        for line in wrap(printable(alert.condition.sentence), max(20, width - len(_INDENT))):
            yield Content(f"{_INDENT}{line}")
    if len(alerts) > _MAX_LISTED:
        yield Content.styled(f"{_INDENT}and {len(alerts) - _MAX_LISTED} more", MUTED)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))


ALERT_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("dashboard.alerts", "app.pop_screen", help_text=""),
]


class AlertsScreen(DrawnScreen[None]):
    """Lists the alerts."""

    app: BoardApp
    TITLE = "Alerts"
    AUTO_FOCUS = "#alerts"
    BINDINGS: ClassVar[list[BindingType]] = ALERT_KEYS
    DEFAULT_CSS = """
    AlertsScreen #alerts { height: 1fr; padding: 0 1; margin: 1 0 0 0; scrollbar-size-vertical: 1; }
    """

    def compose(self) -> ComposeResult:
        """The alerts."""
        yield TitleLine(id="title")
        with VerticalScroll(id="alerts", can_focus=True):
            yield StaticLines(id="list")
        yield KeysLine()

    def show_feed(self) -> None:
        """Draw again each second: times go on without readings too."""
        self.redraw()

    def draw(self) -> None:
        """Draw the alerts."""
        watch = self.app.alert_watch
        firing = len(watch.states.firing) if watch else 0
        self.query_one("#title", StaticLines).show(Content(f"Alerts · {firing} firing"))
        scroll = self.query_one("#alerts", VerticalScroll)
        width = self.size.width - 2 - scroll.scrollbar_size_vertical
        lines = alert_lines(watch, time.time(), width, recorded=self.app.feed.banner is not None)
        self.query_one("#list", StaticLines).show(Content("\n").join(lines), layout=True)


def open_alerts(app: BoardApp) -> None:
    """Show the alerts, unless they are shown already."""
    if not isinstance(app.screen, AlertsScreen):
        app.push_once(AlertsScreen())
