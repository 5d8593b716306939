"""Wait for a state instead of a time: tests poll a condition and fail only after a deadline that a busy machine meets.

``from waiting import until``; pytest's ``pythonpath`` setting makes this folder importable.
"""

import inspect
import time
from collections.abc import Callable
from typing import Any

DEADLINE_SECONDS = 60.0
"""Long enough for a machine with eight busy processes beside the tests; a passing test never waits that long."""
_POLL_SECONDS = 0.01
"""Time between two looks at a condition; later a tenth of the time so far, as many conditions render a screen."""


def until(condition: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> None:
    """Return as soon as ``condition()`` is true.

    Raises:
        AssertionError: it was still false after ``seconds``.
    """
    start = time.monotonic()
    while not condition():
        time.sleep(_pause(condition, start, seconds))


async def until_shown(pilot: Any, condition: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> None:
    """Return as soon as ``condition()`` is true; the app that ``pilot`` drives runs meanwhile.

    Raises:
        AssertionError: it was still false after ``seconds``.
    """
    start = time.monotonic()
    while not condition():
        await pilot.pause(_pause(condition, start, seconds))


def _pause(condition: Callable[[], Any], start: float, seconds: float) -> float:
    waited = time.monotonic() - start
    if waited > seconds:
        raise AssertionError(f"still false after {seconds:g} s: {_source(condition)}")
    return max(_POLL_SECONDS, min(waited / 10, 0.25))


def _source(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
