"""Reads a source at a steady pace, on one thread of its own that nobody else has to wait for."""

import threading
import time
from collections.abc import Callable

from vramtop.estimator.common.errors import VramtopError

from ..snapshot.snapshot import Snapshot
from .source import EndOfRecording, SnapshotSource

RETRY_SECONDS = 5.0
"""A source that cannot be opened, or has failed, is tried again after this: a driver may appear."""
MIN_INTERVAL_SECONDS = 0.05
"""Whatever is asked for: a thread without sleep would take a whole core."""


class Sampler:
    """One daemon thread that opens, reads and closes a source.

    Both callbacks run on that thread and must return at once (post a message). After ``stop`` neither is called again.

    Args:
        source: what to read; nobody else may use it.
        interval: seconds between the starts of two readings.
        on_snapshot: gets every snapshot.
        on_error: gets the reason when the source cannot be opened or has failed, and ``EndOfRecording``, after which
            the thread ends.
        retry_seconds: how long to wait before a failed source is opened again; None: the thread ends instead.
        clock: seconds that never run backwards.
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
        self._interval = max(interval, MIN_INTERVAL_SECONDS)
        self._on_snapshot = on_snapshot
        self._on_error = on_error
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._stopping = threading.Event()
        self._running = threading.Event()
        """Cleared while paused."""
        self._running.set()
        self._changed = threading.Event()
        """Set by every control, so that the thread wakes up and looks."""
        self._thread = threading.Thread(target=self._run, name="vramtop-sampler", daemon=True)

    @property
    def interval(self) -> float:
        """Seconds between the starts of two readings."""
        return self._interval

    @property
    def paused(self) -> bool:
        """Whether readings are suspended."""
        return not self._running.is_set()

    def start(self) -> None:
        """Begin; the first reading follows at once."""
        self._thread.start()

    def stop(self, timeout: float = 0.3) -> bool:
        """End the thread. The source is closed on it, never while one of its calls is under way.

        Args:
            timeout: seconds to wait for it; a driver's call may hang for much longer.

        Returns:
            Whether it has ended. When not, the thread is left alone: it dies with the program.
        """
        self._stopping.set()
        self._changed.set()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def pause(self) -> None:
        """Take no readings until ``resume``."""
        self._running.clear()
        self._changed.set()

    def resume(self) -> None:
        """Go on after ``pause``, with a reading at once."""
        self._running.set()
        self._changed.set()

    def set_interval(self, seconds: float) -> None:
        """Change the pace; it counts from the last reading."""
        self._interval = max(seconds, MIN_INTERVAL_SECONDS)
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
            self._wait(self._clock(), lambda: self._retry_seconds or 0.0)

    def _sample(self) -> None:
        """Read until told to stop, or until the source fails."""
        due = self._clock()
        while not self._stopping.is_set():
            snapshot = self._source.read()
            if snapshot is not None and not self._stopping.is_set():
                self._on_snapshot(snapshot)
            due = self._wait(due, lambda: self._interval)

    def _wait(self, since: float, seconds: Callable[[], float]) -> float:
        """Sleep until ``seconds`` after ``since``, and while paused; returns when the next reading was due.

        A reading that took longer than the interval makes the next ones fall out, not come in a burst.
        """
        while not self._stopping.is_set():
            if self.paused:
                self._changed.wait()
                self._changed.clear()
                since = self._clock() - seconds()  # a reading is due at once after the pause
                continue
            now = self._clock()
            due = since + seconds()
            if now >= due:
                return due if now - due < seconds() else now
            if self._changed.wait(due - now):
                self._changed.clear()
        return since

    def _report(self, error: VramtopError) -> None:
        if not self._stopping.is_set():
            self._on_error(error)
