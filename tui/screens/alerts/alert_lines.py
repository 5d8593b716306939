"""The alerts as text: those that fire, conditions that hold for too short a time yet, and those that have cleared."""

from __future__ import annotations

import time
from textwrap import wrap
from typing import TYPE_CHECKING

from textual.content import Content

from ...draw import ALARM, BAD, MUTED, UNCERTAIN, format_duration, on_colour, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vramtop.monitor.alerts import Alert, AlertWatch, FleetWatch

_BADGES = {"critical": f"bold {on_colour(BAD)}", "warning": ALARM, "info": "bold reverse"}
_INDENT = 3
_MAX_LISTED = 100
"""Alerts of one heading: a thousand hosts may be silent at once."""


def alert_lines(
    watch: AlertWatch | FleetWatch | None, now: float, width: int, *, recorded: bool = False
) -> list[Content]:
    """Return all alerts in lines of at most this width.

    Args:
        watch: the alerts; None: they have not been looked for yet.
        now: Unix seconds.
        width: cells of a line.
        recorded: a recording is played, which raises none.
    """
    if watch is None:
        words = "A recording raises no alerts: they are about this machine now." if recorded else "looking for alerts …"
        return [Content.styled(words, MUTED)]
    states = watch.states
    lines = [Content.styled("Firing", "bold underline")]
    firing, waiting = states.firing, states.waiting
    if not firing:
        lines.append(Content.styled("none", "$text-success"))
    for alert in firing[:_MAX_LISTED]:
        since = f"since {_clock(alert.since)}, {format_duration(max(0.0, now - alert.since))}"
        more = f"{since}; now gone for {format_duration(alert.gone_seconds)}" if alert.gone_seconds else since
        lines += _entry(alert, more, width, style=_BADGES[alert.condition.rule.severity])
    lines += _rest(firing)
    if waiting:
        lines += [Content(), Content.styled("Not for long enough yet", "bold underline")]
        for alert in waiting[:_MAX_LISTED]:
            lines += _entry(alert, f"an alert in {format_duration(alert.seconds_left)}, if it stays so", width)
        lines += _rest(waiting)
    if states.resolved:
        lines += [Content(), Content.styled("Cleared", "bold underline")]
        for alert in states.resolved:
            until = f"{_clock(alert.since)} to {_clock(alert.resolved_at or now)}"
            lines += _entry(alert, until, width)
    return lines


def quiet_line(hours: str | None, *, quiet: bool) -> Content:
    """Return the quiet hours in words.

    Args:
        hours: as they are kept; None: there are none.
        quiet: it is such an hour now.
    """
    if hours is None:
        return Content.styled("no quiet hours: you are told of an alert at any time (e sets some)", MUTED)
    words = f"quiet hours {printable(hours)}: alerts are listed here, and you are told afterwards of those that last"
    if quiet:
        return Content.assemble((" QUIET NOW ", f"bold {on_colour(UNCERTAIN)}"), f" {words}")
    return Content.styled(words, MUTED)


def _rest(alerts: Sequence[Alert]) -> list[Content]:
    """Return a line about the alerts that are too many to be listed."""
    return [Content.styled(f"and {len(alerts) - _MAX_LISTED} more", MUTED)] if len(alerts) > _MAX_LISTED else []


def _entry(alert: Alert, when: str, width: int, *, style: str = "bold") -> Iterator[Content]:
    """Yield an alert: its kind and when it was, and its sentence in full below."""
    yield Content.assemble((f" {alert.condition.rule.title} ", style), f"  {when}")
    indent = " " * _INDENT
    for line in wrap(printable(alert.condition.sentence), max(20, width - _INDENT)):
        yield Content(f"{indent}{line}")


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))
