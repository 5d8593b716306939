"""Scales of plots: round steps of memory and of time."""

from __future__ import annotations

import math
import time as clock

from vramtop.estimator.common import GIB, MIB

_STEPS = (1, 2, 5, 10, 15, 30)
_SECONDS = (
    *_STEPS,
    *(60 * step for step in _STEPS),
    *(3600 * step for step in (1, 2, 3, 6, 12)),
    *(86_400 * step for step in (1, 2, 7, 14, 28, 91, 364)),
)


def memory_ticks(top_bytes: int, count: int = 5) -> list[tuple[int, str]]:
    """Return about ``count`` round sizes below the end of a scale, each with its label."""
    unit, word = (GIB, "GiB") if top_bytes >= 2 * GIB else (MIB, "MiB")
    whole = max(top_bytes / unit, 1e-9)
    rough = whole / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    return [(round(at * step * unit), f"{at * step:g} {word}") for at in range(math.floor(whole / step * 1.001) + 1)]


def time_ticks(begin: float, end: float, count: int = 8) -> list[tuple[float, str]]:
    """Return about ``count`` round clock times, each with its label: ``14:05``, ``14:05:30``, ``11-22``.

    Args:
        begin: Unix seconds.
        end: Unix seconds.
        count: of ticks.
    """
    span = max(end - begin, 1.0)
    step = next((each for each in _SECONDS if span / each <= count), span / count)
    offset = clock.localtime(begin).tm_gmtoff or 0
    first = math.ceil((begin + offset) / step) * step - offset
    pattern = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%m-%d"
    found = []
    at = first
    while at <= end:
        found.append((at, clock.strftime(pattern, clock.localtime(at))))
        at += step
    return found


def clock_text(seconds: float, *, date: bool = False) -> str:
    """Return a moment as a local time, with its date if asked for."""
    return clock.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", clock.localtime(seconds))


def zone_text(seconds: float) -> str:
    """Return the time zone in which clock times are stated: ``CET, UTC+01:00``."""
    moment = clock.localtime(seconds)
    offset = moment.tm_gmtoff or 0
    sign, minutes = ("-" if offset < 0 else "+"), abs(offset) // 60
    shift = f"UTC{sign}{minutes // 60:02}:{minutes % 60:02}"
    return shift if moment.tm_zone in (None, "UTC") or not moment.tm_zone.isalpha() else f"{moment.tm_zone}, {shift}"
