"""Records what is on the screen to a file, on a thread of its own: a slow disk holds up nothing."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.sources.recording import RecordingWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vramtop.monitor.snapshot.snapshot import Snapshot

_BACKLOG = 120
"""Snapshots that may wait for the disk; more are left out."""


class Recorder:
    """One recording, from its start until ``stop``.

    Args:
        path: a file that does not exist yet.
        on_error: gets the reason when it cannot be written; called on the recorder's thread.
    """

    def __init__(self, path: Path, on_error: Callable[[VramtopError], None]) -> None:
        self.path = path
        self._on_error = on_error
        self._waiting: queue.Queue[Snapshot | None] = queue.Queue(_BACKLOG)
        self._thread = threading.Thread(target=self._write, name="vramtop-recorder", daemon=True)
        self._thread.start()

    def add(self, snapshot: Snapshot) -> None:
        """Record this too; never waits."""
        try:
            self._waiting.put_nowait(snapshot)
        except queue.Full:
            return

    def stop(self, timeout: float = 0.2) -> None:
        """Finish the file; a disk that takes longer than ``timeout`` seconds is not waited for."""
        try:
            self._waiting.put(None, timeout=timeout / 2)
        except queue.Full:
            return
        self._thread.join(timeout / 2)

    def _write(self) -> None:
        try:
            with RecordingWriter(self.path) as writer:
                while snapshot := self._waiting.get():
                    writer.write(snapshot)
        except VramtopError as error:
            self._on_error(error)
