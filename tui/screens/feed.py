"""State of the readings: their age, whether they are paused, and the signs for that."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from ..draw.labels import alarm, format_duration

STALE_INTERVALS = 3
"""Readings older than this number of intervals are stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFeed:
    """Interval, age and state of the readings."""

    interval: float
    """Seconds between readings."""
    age_seconds: float | None = None
    """Age of the latest reading; None while it is as recent as it should be."""
    paused: bool = False
    failure: str | None = None
    """Why there are no new readings."""
    recording: str | None = None
    """Name of the file that is being recorded."""
    banner: str | None = None
    """A notice in the header, for example that a recording is being played."""


def feed_signs(feed: BoardFeed) -> list[Content]:
    """Return what a header says of the readings: paused, old; nothing where all is as usual."""
    signs = []
    if feed.paused:
        signs.append(Content.styled(" paused ", alarm()))
    if feed.age_seconds is not None:
        signs.append(Content.styled(f" ! figures are {format_duration(feed.age_seconds)} old ", alarm()))
    return signs
