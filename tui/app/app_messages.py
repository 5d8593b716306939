"""What the source's thread tells the app."""

from textual.message import Message

from vramtop.monitor.board.board import Board


class BoardUpdated(Message):
    """New figures."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self.board = board

    def can_replace(self, message: Message) -> bool:
        """A newer board makes an older one that still waits superfluous."""
        return isinstance(message, BoardUpdated)


class SourceFailed(Message):
    """There are no new figures, and why."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence
