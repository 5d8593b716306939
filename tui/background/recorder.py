"""Records the displayed snapshots to a file on a thread of its own, so that a slow disk delays nothing."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import VramtopError, start_thread
from vramtop.monitor.sources.recording import RecordingWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vramtop.monitor.snapshot.snapshot import Snapshot

_MAX_QUEUED_SNAPSHOTS = 120
"""Snapshots that wait for the disk; further ones are left out of the recording."""
_STOP_SECONDS = 0.2
"""Longest time that quitting waits for the disk."""


class Recorder:
    """One recording, from its construction until ``stop``.

    Args:
        path: a file that does not exist yet; it is removed again if nothing could be recorded.
        on_error: receives the reason if the file cannot be written; called on the recorder's thread.
    """

    def __init__(self, path: Path, on_error: Callable[[VramtopError], None]) -> None:
        self.path = path
        self.written = 0
        """Snapshots in the file."""
        self._on_error = on_error
        self._queue: queue.Queue[Snapshot | None] = queue.Queue(_MAX_QUEUED_SNAPSHOTS)
        self._thread = threading.Thread(target=self._write, name="vramtop-recorder", daemon=True)
        try:
            start_thread(self._thread)
        except VramtopError as error:
            on_error(error)

    def add(self, snapshot: Snapshot) -> None:
        """Queue a snapshot for writing, without waiting for the disk."""
        try:
            self._queue.put_nowait(snapshot)
        except queue.Full:
            return

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Complete the file, waiting for the disk for at most ``timeout`` seconds."""
        try:
            self._queue.put(None, timeout=timeout / 2)
        except queue.Full:
            return
        if self._thread.ident is not None:
            self._thread.join(timeout / 2)

    def _write(self) -> None:
        try:
            with RecordingWriter(self.path) as writer:
                while snapshot := self._queue.get():
                    writer.write(snapshot)
                    self.written += 1
        except VramtopError as error:
            self._on_error(error)
