"""The alerts screen: what is wrong now, what may become an alert, what has cleared, and the quiet hours."""

from __future__ import annotations

import time
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Input

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.alerts.alert_watch import QuietHours, kept_quiet_hours
from vramtop.monitor.storage.settings.schema import QUIET_HOURS

from ..draw.labels import MUTED, alarm, format_duration
from ..draw.palette import colour_of, on_colour
from ..draw.text_output import printable
from ..keys import bind, shown_key
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import StaticLines
from .base import BoardApp, DrawnScreen, is_complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.alerts.alert_watch import Alert, AlertWatch

# The alerts as text: those that fire, conditions that hold for too short a time yet, and those that have cleared.


_INDENT = 3
_MAX_LISTED = 30
"""Alerts of one kind that are listed: a thousand hosts may be silent at once."""
_MAX_APART = 3
"""Alerts of one kind that have two lines each."""


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
            ("A recording raises no alerts; alerts are about this machine now.") if recorded else "looking for alerts …"
        )
        return [Content.styled(words, MUTED)]
    states = watch.states
    lines = [Content.styled("Firing", "bold underline")]
    firing, waiting = states.firing, states.waiting
    if not firing:
        lines.append(Content.styled("none", "$text-success"))

    def since(alert: Alert) -> tuple[str, str]:
        at, gone = _clock(alert.since), format_duration(alert.gone_seconds)
        words = f"since {at}, {format_duration(max(0.0, now - alert.since))}"
        return (f"{words}; cleared for {gone}", f"{at}, cleared {gone}") if alert.gone_seconds else (words, at)

    def left(alert: Alert) -> tuple[str, str]:
        seconds = format_duration(alert.seconds_left)
        return f"becomes an alert in {seconds} if it lasts", seconds

    def span(alert: Alert) -> tuple[str, str]:
        words = f"{_clock(alert.since)} to {_clock(alert.resolved_at or now)}"
        return words, words

    lines += _listed(firing, since, "alerts, since", width, is_firing=True)
    if waiting:
        lines += [Content(), Content.styled("Not yet alerts", "bold underline")]
        lines += _listed(waiting, left, "become alerts in", width)
    if states.resolved:
        lines += [Content(), Content.styled("Cleared", "bold underline")]
        lines += _listed(states.resolved, span, "alerts, from", width)
    return lines


def quiet_line(hours: str | None, *, quiet: bool) -> Content:
    """Return the quiet hours in words.

    Args:
        hours: as they are kept; None: there are none.
        quiet: it is such an hour now.
    """
    if hours is None:
        key = shown_key("alerts.quiet_hours")
        return Content.styled(f"no quiet hours: alert messages come at any time ({key} sets quiet hours)", MUTED)
    words = (
        f"quiet hours {printable(hours)}: alerts are only listed here; afterwards you get a message for each that "
        "still lasts"
    )
    if quiet:
        return Content.assemble((" QUIET NOW ", f"bold {on_colour(colour_of('uncertain'))}"), f" {words}")
    return Content.styled(words, MUTED)


def _listed(
    alerts: Sequence[Alert],
    when: Callable[[Alert], tuple[str, str]],
    times: str,
    width: int,
    *,
    is_firing: bool = False,
) -> Iterator[Content]:
    """Yield alerts, those of one kind together: a few with a line each for kind and time, many with one for all.

    Args:
        alerts: the worst first.
        when: returns the time of one in words, and in a word or two.
        times: what these times are, after a number.
        width: cells of a line.
        is_firing: they fire now.
    """
    kinds: dict[str, list[Alert]] = {}
    for alert in alerts:
        kinds.setdefault(alert.condition.rule.name, []).append(alert)
    for same in kinds.values():
        rule, is_many = same[0].condition.rule, len(same) > _MAX_APART
        heading = (f" {rule.title} ", _badge_style(rule.severity) if is_firing else "bold")
        if is_many:
            yield Content.assemble(heading, f"  {len(same)} {times}")
        for alert in same[:_MAX_LISTED]:
            words, short = when(alert)
            if not is_many:
                yield Content.assemble(heading, f"  {words}")
            sentence = printable(alert.condition.sentence)
            for line in wrap(f"{short}  {sentence}" if is_many else sentence, max(20, width - _INDENT)):
                yield Content(f"{' ' * _INDENT}{line}")
        if len(same) > _MAX_LISTED:
            yield Content.styled(f"{' ' * _INDENT}and {len(same) - _MAX_LISTED} more", MUTED)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))


def _badge_style(severity: str) -> str:
    if severity == "critical":
        return f"bold {on_colour(colour_of('bad'))}"
    return alarm() if severity == "warning" else "bold reverse"


# Keys of the alerts screen.


ALERT_KEYS: list[BindingType] = [
    bind("app.back", "leave", "Back"),
    bind("dashboard.alerts", "leave", help_text=""),
    bind("alerts.quiet_hours", "quiet_hours", "Quiet hours"),
]


_REFRESH_SECONDS = 1.0


class AlertsScreen(DrawnScreen[None]):
    """Lists the alerts, those too that nobody is told of in quiet hours."""

    app: BoardApp
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
            self.redraw()
            self.set_interval(_REFRESH_SECONDS, self.redraw)

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
        self.redraw()

    def _close_field(self) -> None:
        self.query_one("#field").display = False
        self.query_one("#alerts").focus()

    def draw(self) -> None:
        """Draw the alerts and the quiet hours."""
        watch = self.app.alert_watch
        firing = watch.states.firing_count if watch else 0
        self.query_one("#title", StaticLines).show(Content(f"Alerts · {firing} firing"))
        hours = kept_quiet_hours(str(self.app.settings.get(QUIET_HOURS, "")))
        kept = hours if isinstance(hours, QuietHours) else None
        is_quiet = kept is not None and kept.contains(time.localtime())
        self.query_one("#quiet", StaticLines).show(quiet_line(str(kept) if kept else None, quiet=is_quiet), layout=True)
        scroll = self.query_one("#alerts", VerticalScroll)
        width = self.size.width - 2 - scroll.scrollbar_size_vertical
        lines = alert_lines(watch, time.time(), width, recorded=self.app.feed.banner is not None)
        self.query_one("#list", StaticLines).show(Content("\n").join(lines), layout=True)


# Opens the alerts screen.


def open_alerts(app: BoardApp) -> None:
    """Show the alerts, unless they are shown already."""
    if not isinstance(app.screen, AlertsScreen):
        app.push_once(AlertsScreen())
