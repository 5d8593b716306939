"""An app that hosts one screen under test, and functions that return the text drawn on a screen."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from builders import ScriptedSource, make_watchlist
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input
from waiting import until_shown

from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.job.form.field_row import FieldRow
from vramtop.tui.screens.dashboard.process_table import ProcessTable

Shown = TypeVar("Shown", bound=Screen[Any])


class ScreenHost(App[None]):
    """Opens the given screen and records notifications."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self.shown = screen
        self.notices: list[str] = []

    def notify(self, message: str, **options: Any) -> None:
        """Record the message and show it."""
        self.notices.append(message)
        super().notify(message, **options)

    async def on_mount(self) -> None:
        """Push the screen."""
        await self.push_screen(self.shown)


@asynccontextmanager
async def opened(
    screen: Shown, board: Board | None = None, *, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Shown, Pilot[None]]]:
    """Open a screen in a terminal of this size, and show it a board."""
    async with ScreenHost(screen).run_test(size=size) as pilot:
        if board is not None:
            await pilot.pause()
            screen.show_board(board)  # type: ignore[attr-defined]
        yield screen, pilot


class TableApp(App[None]):
    """Hosts a process table and records the pids that it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []

    def compose(self) -> ComposeResult:
        """Show the table alone."""
        yield ProcessTable()

    def on_process_table_opened(self, event: ProcessTable.Opened) -> None:
        """Record the process."""
        self.opened.append(event.row.process.pid)


@asynccontextmanager
async def table_of(board: Board, size: tuple[int, int] = (120, 20)) -> AsyncIterator[tuple[ProcessTable, Pilot[None]]]:
    """Show a board in a table that is as wide as the terminal."""
    app = TableApp()
    async with app.run_test(size=size) as pilot:
        table = app.query_one(ProcessTable)
        table.show_board(board, width=size[0])
        yield table, pilot


def field_row(screen: Screen[Any], key: str) -> FieldRow:
    """Return the row of a key in the screen's form."""
    return screen.query_one(f"#row-{key.replace('.', '-')}", FieldRow)


async def retype(pilot: Pilot[Any], screen: Screen[Any], key: str, text: str) -> None:
    """Type another value into the field of a key."""
    field_row(screen, key).query_one(Input).focus()
    await pilot.press("end", "ctrl+u", *text)


def screen_lines(app: App[Any]) -> list[str]:
    """Return the text of each line of the current screen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def screen_text(app: App[Any]) -> str:
    """Return the text of the current screen."""
    return "\n".join(screen_lines(app))


def app_of(snapshots: Sequence[Snapshot], watchlist: Watchlist | None = None, **options: Any) -> VramtopApp:
    """Make a dashboard that shows these snapshots, four in a second; further arguments are its options."""
    return VramtopApp(
        ScriptedSource(snapshots), watchlist or make_watchlist(), AppOptions(**{"interval": 0.25, **options})
    )


@asynccontextmanager
async def on_first_board(app: Any, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Any]:
    """Run the dashboard, and wait until its first board is drawn."""
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await pilot.pause()
        yield pilot
