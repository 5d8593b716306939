"""The app as screens see it: the latest board, how readings arrive, and what a screen may ask the app to open."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..tty.terminal_app import TerminalApp

if TYPE_CHECKING:
    from vramtop.estimator.budget.budget import Budget
    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.board.watchlist import Watchlist


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatus:
    """How readings arrive."""

    interval: float
    """Seconds between readings."""
    age_seconds: float | None = None
    """Age of the latest reading; None while it is as recent as it should be."""
    paused: bool = False
    recording: str | None = None
    """The file that is being recorded."""
    failure: str | None = None
    """Why there are no new readings."""
    banner: str | None = None
    """What is special about this run, such as that a recording is played."""


@runtime_checkable
class ShowsBoard(Protocol):
    """A screen that receives every new board, and the latest one when it becomes active again."""

    def show_board(self, board: Board) -> None:
        """Show these figures; called on the UI thread, about once an interval."""


class BoardApp(TerminalApp):
    """The part of the app that screens may use; ``app.VramtopApp`` implements it."""

    watchlist: Watchlist
    board: Board | None
    """The latest board; None until the first reading."""

    @property
    @abstractmethod
    def feed(self) -> FeedStatus:
        """How readings arrive."""

    @property
    @abstractmethod
    def no_ending(self) -> str | None:
        """Why no process can be ended from here, in one sentence; None: they can."""

    @property
    @abstractmethod
    def card_bytes(self) -> int | None:
        """Memory of the largest GPU or MIG device; None where none is known."""

    @abstractmethod
    def show_process(self, row: ProcessRow) -> None:
        """Open the attach screen on this process."""

    @abstractmethod
    def show_step(self, budget: Budget, card_bytes: int | None) -> None:
        """Open the step screen on this budget."""

    @abstractmethod
    def renew_board(self) -> None:
        """Build the board again from the latest snapshot, because the set of known jobs has changed."""
