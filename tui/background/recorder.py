"""Records the displayed snapshots to a file on a thread of its own, so that a slow disk delays nothing."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.recording import RecordingWriter

from .latest_only_task import TaskThread

_MAX_WAITING_SNAPSHOTS = 120
"""Snapshots that wait for the disk; further ones are left out of the recording."""
_STOP_SECONDS = 0.2
"""Longest time that quitting waits for the disk."""


class Recorder:
    """One recording, from its construction until ``stop``.

    Args:
        path: a file that does not exist yet; it is removed again if nothing could be recorded.
        on_error: receives the reason if the file cannot be written; called on any thread.
    """

    def __init__(self, path: Path, on_error: Callable[[VramtopError], None]) -> None:
        self.path = path
        self.written = 0
        """Snapshots in the file."""
        self._on_error = on_error
        self._thread = TaskThread("vramtop-recorder", _MAX_WAITING_SNAPSHOTS)
        self._writer: RecordingWriter | None = None
        self._stopped = threading.Event()
        self._run(self._open)

    def add(self, snapshot: Snapshot) -> None:
        """Write a snapshot, without waiting for the disk."""
        self._run(lambda: self._write(snapshot))

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Complete the file, waiting for the disk for at most ``timeout`` seconds."""
        if self._run(self._close):
            self._stopped.wait(timeout)

    def _run(self, step: Callable[[], None]) -> bool:
        """Take a step on the recorder's thread; False: it cannot be taken."""
        try:
            return self._thread.submit(lambda: self._take(step))
        except VramtopError as error:
            self._on_error(error)
            return False

    def _take(self, step: Callable[[], None]) -> None:
        try:
            step()
        except VramtopError as error:
            failed, self._writer = self._writer, None
            if failed is not None:
                with suppress(VramtopError):
                    failed.close()
            self._on_error(error)

    def _open(self) -> None:
        self._writer = RecordingWriter(self.path)

    def _write(self, snapshot: Snapshot) -> None:
        if self._writer is not None:
            self._writer.write(snapshot)
            self.written += 1

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        self._stopped.set()
