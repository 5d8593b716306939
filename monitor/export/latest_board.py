"""Latest board, and whether it is recent enough to be exported."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import msgspec

from ..board.board import stale_after_seconds
from ..snapshot.faults import NO_DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..board.board import Board
    from ..fleet.fleet import RankFacts
    from ..snapshot.snapshot import ProcessKey


class ReadingState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the sampler at one moment."""

    board: Board | None
    """The latest board; None: there was none, it is too old, or the driver failed since."""
    interval_seconds: float
    readings: int
    failures: int
    read_at: float | None
    """Unix seconds of the last reading; None: there was none."""
    age_seconds: float | None
    """Age of that reading."""
    facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None
    """What the environment of a process says of its run."""
    failure: str | None = None
    """Fault code of what keeps the sampler from reading; None: nothing does."""


class LatestBoard:
    """Keeps the latest board. Safe to use from several threads.

    One that is too old (``stale_after_seconds``) is not exported.

    Args:
        interval: seconds between two readings.
        facts_of: returns what the environment of a process says of its run; called at each scrape.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        interval: float,
        *,
        facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = interval
        self._facts_of = facts_of
        self._clock = clock
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._started_at = clock()
        self._board_at = 0.0
        self._read_at: float | None = None
        self._readings = self._failures = 0
        self._failure: str | None = None

    @property
    def stale_seconds(self) -> float:
        """Age from which a board is not exported."""
        return stale_after_seconds(self._interval)

    def set(self, board: Board) -> None:
        """Take a new board; one of a machine without a driver is a failure."""
        if any(fault.code == NO_DRIVER for fault in board.snapshot.faults):
            self.fail(NO_DRIVER)
            return
        with self._lock:
            self._board, self._board_at, self._read_at = board, self._clock(), board.snapshot.time
            self._readings += 1
            self._failure = None

    def fail(self, code: str) -> None:
        """Note that the source has failed: the figures of the last board are not exported any more."""
        with self._lock:
            self._board, self._failure = None, code
            self._failures += 1

    def state(self) -> ReadingState:
        """Return the latest board, if it is recent."""
        with self._lock:
            age = None if self._read_at is None else self._clock() - self._board_at
            waited = self._clock() - self._started_at if age is None else age
            is_stale = waited > self.stale_seconds
            return ReadingState(
                board=None if is_stale else self._board,
                interval_seconds=self._interval,
                readings=self._readings,
                failures=self._failures,
                read_at=self._read_at,
                age_seconds=age,
                facts_of=self._facts_of,
                failure=self._failure or ("NO_READING" if is_stale else None),
            )
