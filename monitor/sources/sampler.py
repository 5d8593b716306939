"""Sampler: reads a source at a steady interval on its own thread."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.process_limit import start_thread

from ..board.board import Board
from ..snapshot.snapshot import Snapshot


class EndOfRecording(VramtopError):  # noqa: N818 - an end, not an error
    """A recording has been played to its end."""

    title = "The recording has ended"


class SnapshotSource(Protocol):
    """A source of snapshots. All three methods are called on the same thread."""

    def open(self) -> None:
        """Prepare for reading; may be called again after ``close``.

        Raises:
            VramtopError: the source is unavailable; the message states why.
        """

    def read(self) -> Snapshot | None:
        """Return the latest snapshot; None if there is none since the last call (a recording between two snapshots).

        Raises:
            EndOfRecording: there are no more snapshots.
            VramtopError: the source as a whole has failed; it may be opened again.
        """

    def close(self) -> None:
        """Release all resources; does nothing if the source is not open."""


RETRY_SECONDS = 5.0
"""Waiting time before a source that has failed is opened again: a driver may appear."""
MIN_INTERVAL_SECONDS = 0.05
"""Lower limit of the interval: a thread that never sleeps would use a whole core."""


class Sampler:
    """One daemon thread that opens, reads and closes a source.

    Both callbacks run on that thread and must return quickly (post a message). After ``stop`` neither is called again.

    Args:
        source: to read; nothing else may use it.
        interval: seconds between the starts of two readings.
        on_snapshot: called with every snapshot.
        on_error: called with the error of a source that has failed, and with ``EndOfRecording``, after which the
            thread ends.
        retry_seconds: waiting time before a failed source is opened again; None: the thread ends instead.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: SnapshotSource,
        interval: float,
        on_snapshot: Callable[[Snapshot], None],
        on_error: Callable[[VramtopError], None],
        *,
        retry_seconds: float | None = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self.interval = max(interval, MIN_INTERVAL_SECONDS)
        """Seconds between the starts of two readings."""
        self._on_snapshot = on_snapshot
        self._on_error = on_error
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._stopping = threading.Event()
        self._running = threading.Event()
        """Cleared while paused."""
        self._running.set()
        self._changed = threading.Event()
        """Set by every control method to wake up the thread."""
        self._early = threading.Event()
        """Set while the next reading is due at once."""
        self._thread = threading.Thread(target=self._run, name="vramtop-sampler", daemon=True)

    @property
    def paused(self) -> bool:
        """True if no readings are taken."""
        return not self._running.is_set()

    def start(self) -> None:
        """Start the thread; it reads at once.

        Raises:
            ProcessLimitError: it cannot be started.
        """
        start_thread(self._thread)

    def stop(self, timeout: float = 0.3) -> bool:
        """End the thread, which closes the source after its current call.

        Args:
            timeout: seconds to wait for the thread; a driver call may hang for much longer.

        Returns:
            True if the thread has ended; otherwise it ends with the program at the latest.
        """
        self._stopping.set()
        self._changed.set()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def pause(self) -> None:
        """Suspend readings until ``resume``."""
        self._running.clear()
        self._changed.set()

    def resume(self) -> None:
        """Continue after ``pause``, with a reading at once."""
        self._running.set()
        self._changed.set()

    def read_soon(self) -> None:
        """Take the next reading now, unless paused: a screen shows more than before."""
        self._early.set()
        self._changed.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._source.open()
                self._sample()
            except EndOfRecording as end:
                self._report(end)
                return
            except VramtopError as error:
                self._report(error)
            finally:
                self._source.close()
            if self._retry_seconds is None:
                return
            self._wait(self._clock(), self._retry_seconds)

    def _sample(self) -> None:
        """Read until ``stop``, or until the source fails."""
        due = self._clock()
        while not self._stopping.is_set():
            snapshot = self._source.read()
            if snapshot is not None and not self._stopping.is_set():
                self._on_snapshot(snapshot)
            due = self._wait(due, self.interval)

    def _wait(self, since: float, seconds: float) -> float:
        """Sleep until ``seconds`` after ``since``, and while paused; returns the time at which the reading was due.

        After a reading that took longer than the interval, the missed ones are skipped, not made up for.
        """
        while not self._stopping.is_set():
            if self.paused:
                self._changed.wait()
                self._changed.clear()
                since = self._clock() - seconds  # a reading is due at once after the pause
                continue
            now = self._clock()
            if self._early.is_set():
                self._early.clear()
                return now
            due = since + seconds
            if now >= due:
                return due if now - due < seconds else now
            if self._changed.wait(due - now):
                self._changed.clear()
        return since

    def _report(self, error: VramtopError) -> None:
        if not self._stopping.is_set():
            self._on_error(error)


class EarlySampler:
    """A sampler that starts at once and keeps its latest result until the user interface subscribes.

    Args:
        source: to read; nothing else may use it.
        interval: seconds between the starts of two readings.
        make_board: makes a board from a snapshot, on the sampler's thread, as a first estimate takes time.
    """

    def __init__(self, source: SnapshotSource, interval: float, make_board: Callable[[Snapshot], Board]) -> None:
        self._make_board = make_board
        self._lock = threading.Lock()
        self._latest: Board | VramtopError | None = None
        self._subscriber: tuple[Callable[[Snapshot], None], Callable[[VramtopError], None]] | None = None
        self.sampler = Sampler(source, interval, self._on_snapshot, self._on_error)
        """The sampler, which is running."""
        self.sampler.start()

    def subscribe(
        self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[VramtopError], None]
    ) -> Board | VramtopError | None:
        """Pass all further results to these callbacks, on the sampler's thread. Never blocks.

        Returns:
            The latest result so far, a board or an error; None if there is none yet.
        """
        with self._lock:
            self._subscriber = on_snapshot, on_error
            return self._latest

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        if self._subscriber is None and self._keep(self._make_board(snapshot)):
            return
        assert self._subscriber is not None  # noqa: S101 - there is no unsubscribing
        self._subscriber[0](snapshot)

    def _on_error(self, error: VramtopError) -> None:
        if not self._keep(error):
            assert self._subscriber is not None  # noqa: S101
            self._subscriber[1](error)

    def _keep(self, result: Board | VramtopError) -> bool:
        """Keep a result; returns False if there is a subscriber, who may have arrived while it was made."""
        with self._lock:
            if self._subscriber is None:
                self._latest = result
            return self._subscriber is None
