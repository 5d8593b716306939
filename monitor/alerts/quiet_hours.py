"""Quiet hours: the part of each day in which alerts are listed, and nobody is told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from vramtop.estimator.common import InputError

if TYPE_CHECKING:
    from time import struct_time

OFF = "off"
_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A time of day from its start up to its end, also across midnight, in minutes since midnight (local time)."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours | None:
        """Return the hours of ``22:00-07:00``; None for ``off`` and for nothing.

        Raises:
            InputError: it is neither.
        """
        text = text.strip()
        if text.lower() in (OFF, ""):
            return None
        found = _SPAN.fullmatch(text)
        if found is None:
            raise InputError(f"{text}: give the quiet hours as HH:MM-HH:MM, such as 22:00-07:00, or off")
        hours = [int(number) for number in found.groups()]
        start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
        if start == end:
            raise InputError(f"{text}: quiet hours end at another time than they begin; off is for none")
        return cls(start, end)

    def contains(self, time: struct_time) -> bool:
        """Return True if a local time is in the quiet hours."""
        minute = time.tm_hour * 60 + time.tm_min
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in (self.start, self.end))


@lru_cache(maxsize=8)  # asked for each second
def kept_quiet_hours(text: str) -> QuietHours | str | None:
    """Return the quiet hours of the settings, None for none, or why they cannot be read."""
    try:
        return QuietHours.parse(text)
    except InputError as error:
        return error.message
