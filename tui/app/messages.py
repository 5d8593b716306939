"""Messages that other threads post to the app: a new board, or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from vramtop.monitor.board import Board


class BoardUpdated(Message):
    """There is a new board: of a new snapshot, or rebuilt from the latest one because the known jobs changed."""

    def __init__(self, board: Board, *, rebuilt: bool = False) -> None:
        super().__init__()
        self.board, self.rebuilt = board, rebuilt

    def can_replace(self, message: Message) -> bool:
        """Replace an earlier board that is still in the queue."""
        return isinstance(message, BoardUpdated)


class SourceFailed(Message):
    """The source could not be read."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence
