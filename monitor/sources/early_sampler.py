"""Reads a source before there is anybody to show it to: the rest of the program is loaded meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.estimator.common.errors import VramtopError

    from ..board.board import Board
    from ..snapshot.snapshot import Snapshot
    from .source import SnapshotSource


class EarlySampler:
    """A sampler that begins at once, and whose newest answer waits for whoever takes over.

    Args:
        source: what to read; nobody else may use it.
        interval: seconds between the starts of two readings.
        judge: makes a board of a snapshot, on the sampler's thread: a first estimate takes its time.
    """

    def __init__(self, source: SnapshotSource, interval: float, judge: Callable[[Snapshot], Board]) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self._newest: Board | VramtopError | None = None
        self._takers: tuple[Callable[[Snapshot], None], Callable[[VramtopError], None]] | None = None
        self.sampler = Sampler(source, interval, self._pass_snapshot, self._pass_error)
        """Runs already."""
        self.sampler.start()

    def subscribe(
        self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[VramtopError], None]
    ) -> Board | VramtopError | None:
        """Whatever comes from here on goes to these, on the sampler's thread. Never waits.

        Returns:
            The newest of what came before: a board, or why there is none; None: nothing has come yet.
        """
        with self._lock:
            self._takers = on_snapshot, on_error
            return self._newest

    def _pass_snapshot(self, snapshot: Snapshot) -> None:
        if self._takers is None and self._keep(self._judge(snapshot)):
            return
        assert self._takers is not None  # noqa: S101 - nobody gives it back
        self._takers[0](snapshot)

    def _pass_error(self, error: VramtopError) -> None:
        if not self._keep(error):
            assert self._takers is not None  # noqa: S101
            self._takers[1](error)

    def _keep(self, answer: Board | VramtopError) -> bool:
        """Whether it was kept; it is not when somebody has taken over, perhaps while it was made."""
        with self._lock:
            if self._takers is None:
                self._newest = answer
            return self._takers is None
