"""The processes that the user has marked in the table, to signal them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...keys import shown_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.snapshot.snapshot import ProcessKey

    from .process_rows import TableRow


Marking = Literal["none", "some", "all"]
"""Whether the processes of a row are marked."""


class Marks:
    """The marked processes; one that has left the GPUs is no longer marked."""

    def __init__(self) -> None:
        self._rows: dict[ProcessKey, ProcessRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ProcessRow]:
        """Yield each process as it was read last, in the order in which they were marked."""
        return iter(self._rows.values())

    def toggle(self, row: TableRow) -> None:
        """Mark the processes of a row; unmark them if all are marked."""
        if self.of(row) == "all":
            self._rows = {key: each for key, each in self._rows.items() if key not in row.process_keys}
        else:
            self._rows.update(_present(row.rows))

    def clear(self) -> None:
        """Unmark all processes."""
        self._rows.clear()

    def show_board(self, board: Board) -> bool:
        """Take the processes from this board, and return True if fewer are marked now."""
        if not self._rows:
            return False
        before, present = len(self._rows), _present(board.processes)
        self._rows = {key: present[key] for key in self._rows if key in present}
        return len(self._rows) < before

    def of(self, row: TableRow) -> Marking:
        """Return whether the processes of a row are marked."""
        if not self._rows or not (keys := row.process_keys):
            return "none"
        count = sum(key in self._rows for key in keys)
        return "none" if not count else "all" if count == len(keys) else "some"

    def sentence(self, *, can_signal: bool) -> str:
        """Return how many processes are marked, and what can be done with them; empty for none.

        Args:
            can_signal: processes can be signalled from here.
        """
        if not self._rows:
            return ""
        count = "1 process" if len(self) == 1 else f"{len(self)} processes"
        signal = f": {shown_key('processes.signal')} signals them together" if can_signal else ""
        return f"* {count} marked{signal}; {shown_key('app.back')} unmarks all"


def _present(rows: Iterable[ProcessRow]) -> dict[ProcessKey, ProcessRow]:
    return {row.process.key: row for row in rows if row.ended_at is None}
