"""The process screen: what one process does now, and everything about it that this user may read."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content

from vramtop.monitor.snapshot.demand import Demand

from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import MUTED, format_duration, join_to_width, left_and_right, process_name
from ...draw.text_output import printable
from ...keys import bind
from ...widgets.keys_line import KeysLine
from ...widgets.static_lines import StaticLines, TitleLine
from ..base import BoardApp, DrawnScreen, ShowsProcess, is_complete
from ..feed import feed_signs
from .detail_lines import detail_lines, listed_lines
from .figure_lines import FIGURES, figure_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.host.inspect.process_details import ProcessDetails
    from vramtop.monitor.snapshot.snapshot import ProcessKey


PROCESS_INFO_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("dashboard.process", "app.pop_screen", help_text=""),
    bind("process.read", "read", "Read again"),
    bind("dashboard.attach", "attach", "Attach", help_text="settings and budget: those of this process"),
]


def _read_details(pid: int, start_time: float | None) -> ProcessDetails:
    from vramtop.monitor.host.inspect.process_details import (
        read_details,  # on the thread that reads: it brings the readers of jobs
    )

    return read_details(pid, start_time)


class ProcessInfoScreen(DrawnScreen[None]):
    """Shows one process; its details are read off the UI thread, once and at the key for it.

    Args:
        key: pid and start time of the process.
        read: reads the details of a process; called off the UI thread.
    """

    app: BoardApp
    TITLE = "Process"
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = PROCESS_INFO_KEYS
    DEFAULT_CSS = """
    ProcessInfoScreen #figures { padding: 0 1; text-wrap: wrap; }
    ProcessInfoScreen #parts {
        height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; border-top: hkey $foreground 20%;
    }
    ProcessInfoScreen #details { text-wrap: wrap; }
    """

    def __init__(self, key: ProcessKey, *, read: Callable[[int, float | None], ProcessDetails] = _read_details) -> None:
        super().__init__()
        self._key = key
        self._read = read
        self._rows: tuple[ProcessRow, ...] = ()
        """The process on each of its GPUs, as of the last board that had it."""
        self._present = False
        """The latest board has it."""
        self._details: ProcessDetails | None = None
        self._problem: str | None = None
        """Why there are no details."""
        self._read_task = LatestOnlyTask("process", self.call_later, self._show_details, self._show_problem)

    @property
    def demand(self) -> Demand:
        """All figures of this process."""
        return Demand(process_figures=frozenset(FIGURES), processes=frozenset({self._key}))

    @property
    def shown_process(self) -> ProcessKey:
        """The process."""
        return self._key

    def compose(self) -> ComposeResult:
        """The figures, and the details below."""
        yield TitleLine(id="title")
        yield StaticLines(id="figures")
        with VerticalScroll(id="parts", can_focus=True):
            yield StaticLines(id="details")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the details."""
        if not is_complete(self):  # the app is being closed
            return
        self.query_one("#parts").focus()
        if self.app.board:
            self.show_board(self.app.board)
        self.action_read()

    def on_unmount(self) -> None:
        """Deliver no result any more."""
        self._read_task.cancel()

    def show_board(self, board: Board) -> None:
        """Show the figures of this board."""
        rows = tuple(row for row in board.processes if row.process.key == self._key)
        self._present = bool(rows)
        if rows:
            self._rows = rows
        self.redraw()

    def show_feed(self) -> None:
        """Draw the age of the readings."""
        self.redraw()

    def action_read(self) -> None:
        """Read the details again."""
        pid, start_time = self._key
        if not self._is_live:
            of_hosts = self.app.board is not None and self.app.board.sums is not None
            where = "on another host" if of_hosts else "in the open recording"
            self._show_problem(f"The process is {where}, not on this machine.")
        elif start_time is not None:
            self._read_task.submit(partial(self._read, pid, start_time))
        elif not self._present:  # else the figures say so
            self._show_problem(f"Process {pid} is not visible from here: it has ended, or runs in another container.")

    def action_attach(self) -> None:
        """Open the attach screen on this process."""
        if self._rows:
            self.app.show_process(self._rows[0])
        else:
            self.notify("This process is not on a GPU now.", severity="warning")

    @property
    def _is_live(self) -> bool:
        board = self.app.board
        return board is None or board.snapshot.source.is_live

    def _show_details(self, details: ProcessDetails) -> None:
        self._details, self._problem = details, None
        self.redraw()

    def _show_problem(self, sentence: str) -> None:
        self._problem = sentence
        self.redraw()

    def draw(self) -> None:
        """Draw everything."""
        width = self.size.width - 2
        self.query_one("#title", StaticLines).show(self._title(width))
        if self._present:
            lines = figure_lines(self._rows, width, live=self._is_live)
        else:
            lines = iter([Content.styled("The process is not on a GPU now, so there are no figures.", MUTED)])
        self.query_one("#figures", StaticLines).show(Content("\n").join(lines), layout=True)
        self.query_one("#details", StaticLines).show(Content("\n").join(self._lines()), layout=True)

    def _lines(self) -> Iterator[Content]:
        """Yield the details; where the process cannot be read, why, and what was known of it before."""
        if self._problem is not None:
            yield Content.styled(self._problem, "$text-warning")
            yield Content.styled("Below: last reading" if self._details or self._rows else "", MUTED)
        if self._details is not None:
            yield from detail_lines(self._details)
        elif self._rows:
            if not self._is_live and (comparison := self._rows[0].comparison):
                yield Content(printable(comparison.sentence))
            yield from listed_lines(self._rows[0].process)
        elif self._problem is None:
            yield Content.styled("… reading the process", MUTED)

    def _title(self, width: int) -> Content:
        pid, start_time = self._key
        row = self._rows[0] if self._rows else None
        name = process_name(row.process) if row else ""
        user = (self._details.user if self._details else None) or (row.process.user if row else None)
        facts = [f"Process {pid}" if pid >= 0 else "Process", *([name] if name else []), printable(user or "user n/a")]
        if start_time is not None and start_time >= 0:
            now = self.app.board.snapshot.time if self.app.board else time.time()
            started = datetime.fromtimestamp(start_time).astimezone()
            facts += [f"started {started:%d %b %H:%M:%S}", f"up {format_duration(max(0.0, now - start_time))}"]
        read = datetime.fromtimestamp(self._details.time).astimezone() if self._details else None
        right = feed_signs(self.app.feed)
        right += [Content.styled(f"details of {read:%H:%M:%S}", MUTED)] if read and width >= 100 else []
        return left_and_right(Content(" · ".join(facts)), join_to_width(right, width), width)


def open_process(app: BoardApp) -> None:
    """Show the process under the cursor of the dashboard or of the attach screen."""
    front = app.screen
    if isinstance(front, ShowsProcess):
        key = front.shown_process
    else:
        key = app.selected_process.process.key if app.selected_process else None
    show_process_details(app, key)


def show_process_details(app: BoardApp, key: ProcessKey | None) -> None:
    """Show a process; None: there is none, and a notification says so."""
    if key is None:
        app.notify("There is no process under the cursor.", severity="warning")
    else:
        app.push_once(ProcessInfoScreen(key))
