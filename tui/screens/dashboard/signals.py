"""Asks which processes to signal, and reports on those that had not ended when the user closed the question."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from textual.screen import Screen

from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.host.terminate import TerminationBatch
from vramtop.monitor.snapshot.snapshot import ProcessKey

from ...keys import shown_key
from .signal_dialog import TerminateScreen
from .signal_text import outcome_notice, still_running_notice

if TYPE_CHECKING:
    from textual.timer import Timer


class Terminations:
    """Asks about processes, and reports on those that had not ended when the user closed the question.

    Args:
        screen: the screen that asks and reports.
    """

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._unfinished: list[TerminationBatch] = []
        self._reported: set[int] = set()
        """Batches of which it was said that some processes are still there, by their ids."""
        self._timer: Timer | None = None

    def ask(self, rows: Sequence[ProcessRow], board: Board) -> None:
        """Ask which signal to send to these processes, or say why none may be sent.

        Args:
            rows: the processes; one that is on several GPUs counts once.
            board: the latest board.
        """
        chosen = {row.process.key: row for row in reversed(rows)}
        rows = [chosen[key] for key in dict.fromkeys(row.process.key for row in rows)]
        batch = self._taken_up(chosen.keys()) or TerminationBatch(row.process for row in rows)
        if not batch.running and batch.refused:
            self._notify("\n".join(batch.refused.values()), warning=True)
            batch.close()
            return
        self._screen.app.push_screen(
            TerminateScreen(rows, batch, board), lambda shown: self._watch(batch, end_shown=bool(shown))
        )

    def _taken_up(self, keys: Collection[ProcessKey]) -> TerminationBatch | None:
        """Return the batch that all of these processes were signalled in and whose outcome is open."""
        for batch in self._unfinished:
            if {member.process.key for member in batch.members} >= set(keys):
                self._unfinished.remove(batch)
                self._reported.discard(id(batch))
                return batch
        return None

    def _watch(self, batch: TerminationBatch, *, end_shown: bool) -> None:
        if batch.sent is None or end_shown:
            batch.close()
            return
        self._unfinished.append(batch)
        if self._timer is None:
            self._timer = self._screen.set_interval(1.0, self._refresh_state)
        self._timer.resume()

    def _refresh_state(self) -> None:
        for batch in list(self._unfinished):
            if not batch.running:
                self._notify(outcome_notice(batch))
                self._unfinished.remove(batch)
                batch.close()
            elif batch.overdue and id(batch) not in self._reported:
                self._notify(f"{still_running_notice(batch)} {shown_key('processes.signal')} asks again.", warning=True)
                self._reported.add(id(batch))
        self._reported &= {id(batch) for batch in self._unfinished}
        if not self._unfinished and self._timer:
            self._timer.pause()

    def _notify(self, words: str, *, warning: bool = False) -> None:
        self._screen.notify(words, severity="warning" if warning else "information", markup=False)
