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


def until(condition: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> None:
    """Return as soon as ``condition()`` is true.

    Raises:
        AssertionError: it was still false after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still false after {seconds:g} s: {_source(condition)}")
        time.sleep(_POLL_SECONDS)


async def until_shown(pilot: Any, condition: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> None:
    """Return as soon as ``condition()`` is true; the app that ``pilot`` drives runs meanwhile.

    Raises:
        AssertionError: it was still false after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still false after {seconds:g} s: {_source(condition)}")
        await pilot.pause(_POLL_SECONDS)


def _source(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
