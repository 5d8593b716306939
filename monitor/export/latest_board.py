"""Latest board, and whether it is recent enough to be exported."""

import threading
import time
from collections.abc import Callable

import msgspec

from ..board.board import Board, stale_after_seconds
from ..fleet.fleet import RankFacts
from ..snapshot.figures import NO_DRIVER
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


class LatestBoard(msgspec.Struct, eq=False):
    """Keeps the latest board. Safe to use from several threads.

    One that is too old (``stale_after_seconds``) is not exported.

    Args:
        interval: seconds between two readings.
        facts_of: returns what the environment of a process says of its run; called at each scrape.
        clock: monotonic seconds.
    """

    interval: float
    facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _board: Board | None = None
    _board_at: float = 0.0
    _read_at: float | None = None
    _started_at: float = 0.0
    _readings: int = 0
    _failures: int = 0
    _failure: str | None = None

    def __post_init__(self) -> None:
        self._started_at = self.clock()

    def set(self, board: Board) -> None:
        """Take a new board; one of a machine without a driver is a failure."""
        if any(fault.code == NO_DRIVER for fault in board.snapshot.faults):
            self.fail(NO_DRIVER)
            return
        with self._lock:
            self._board, self._board_at, self._read_at = board, self.clock(), board.snapshot.time
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
            age = None if self._read_at is None else self.clock() - self._board_at
            waited = self.clock() - self._started_at if age is None else age
            is_stale = waited > stale_after_seconds(self.interval)
            return ReadingState(
                board=None if is_stale else self._board,
                interval_seconds=self.interval,
                readings=self._readings,
                failures=self._failures,
                read_at=self._read_at,
                age_seconds=age,
                facts_of=self.facts_of,
                failure=self._failure or ("NO_READING" if is_stale else None),
            )
