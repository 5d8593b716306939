"""What the app asks of a screen that shows live figures."""

from typing import Protocol, runtime_checkable

from vramtop.monitor.board import Board


@runtime_checkable
class ShowsBoard(Protocol):
    """A screen that wants every new board, and the newest one when it comes to the front."""

    def show_board(self, board: Board) -> None:
        """Show these figures; called on the UI thread, about once an interval."""
