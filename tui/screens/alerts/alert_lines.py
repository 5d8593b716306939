"""The alerts as text: those that fire, conditions that hold for too short a time yet, and those that have cleared."""

from __future__ import annotations

import time
from textwrap import wrap
from typing import TYPE_CHECKING

from textual.content import Content

from ...draw import MUTED, alarm, colour_of, format_duration, on_colour, printable
from ...keys import shown_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vramtop.monitor.alerts import Alert, AlertWatch, FleetWatch

_INDENT = 3
_MAX_LISTED = 30
"""Alerts of one kind that are listed: a thousand hosts may be silent at once."""
_MAX_APART = 3
"""Alerts of one kind that have two lines each."""


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

    def since(alert: Alert) -> tuple[str, str]:
        at, gone = _clock(alert.since), format_duration(alert.gone_seconds)
        words = f"since {at}, {format_duration(max(0.0, now - alert.since))}"
        return (f"{words}; now gone for {gone}", f"{at}, gone {gone}") if alert.gone_seconds else (words, at)

    def left(alert: Alert) -> tuple[str, str]:
        seconds = format_duration(alert.seconds_left)
        return f"an alert in {seconds}, if it stays so", seconds

    def span(alert: Alert) -> tuple[str, str]:
        words = f"{_clock(alert.since)} to {_clock(alert.resolved_at or now)}"
        return words, words

    lines += _listed(firing, since, "alerts, since", width, is_firing=True)
    if waiting:
        lines += [Content(), Content.styled("Not for long enough yet", "bold underline")]
        lines += _listed(waiting, left, "of them, alerts in", width)
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
        return Content.styled(f"no quiet hours: you are told of an alert at any time ({key} sets some)", MUTED)
    words = f"quiet hours {printable(hours)}: alerts are listed here, and you are told afterwards of those that last"
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
