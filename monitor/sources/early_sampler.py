"""Reads a source while the user interface is still being loaded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.estimator.common import VramtopError

    from ..board import Board
    from ..snapshot import Snapshot
    from .source import SnapshotSource


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
