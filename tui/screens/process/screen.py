"""The process screen: the figures of one process at each reading, and its details as they were read."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input

from vramtop.monitor.snapshot import Demand

from ...background import LatestOnlyTask
from ...draw import MUTED, format_duration, left_and_right, printable, process_name
from ...keys import shown_key
from ...widgets import KeysLine, StaticLines
from ..base import is_ascii_only, is_complete
from .details_text import Part, detail_parts, listed_part, matching_parts
from .figures_text import FIGURES, FigureHistory, figure_lines
from .keys import PROCESS_INFO_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from vramtop.monitor.board import Board, ProcessRow
    from vramtop.monitor.host.inspect import ProcessDetails
    from vramtop.monitor.snapshot import ProcessKey

    from ..base import BoardApp

_MAX_PARTS = 8
"""Six, and two lines that say why they cannot be read again."""


def _read_details(pid: int, start_time: float | None) -> ProcessDetails:
    from vramtop.monitor.host.inspect import read_details  # on the thread that reads: it brings the readers of jobs

    return read_details(pid, start_time)


class ProcessInfoScreen(Screen[None]):
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
    ProcessInfoScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    ProcessInfoScreen #figures { padding: 0 1; }
    ProcessInfoScreen #filter { height: 1; display: none; }
    ProcessInfoScreen #parts {
        height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; border-top: hkey $foreground 20%;
    }
    ProcessInfoScreen .part { text-wrap: wrap; padding: 0 0 1 0; }
    """

    def __init__(self, key: ProcessKey, *, read: Callable[[int, float | None], ProcessDetails] = _read_details) -> None:
        super().__init__()
        self._key = key
        self._read = read
        self._rows: tuple[ProcessRow, ...] = ()
        """The process on each of its GPUs, as of the last board that had it."""
        self._board: Board | None = None
        """The board that was shown last."""
        self._present = False
        """The latest board has it."""
        self._history = FigureHistory()
        self._details: ProcessDetails | None = None
        self._problem: str | None = None
        """Why there are no details."""
        self._parts: tuple[Part, ...] = ()
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
        yield StaticLines(id="title")
        yield StaticLines(id="figures")
        yield Input(id="filter", placeholder="show only lines with these words, such as CUDA", compact=True)
        with VerticalScroll(id="parts", can_focus=True):
            for at in range(_MAX_PARTS):
                yield StaticLines(id=f"part-{at}", classes="part")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the details."""
        if not is_complete(self):  # the app is being closed
            return
        self.query_one("#parts").focus()
        if self.app.board:
            self.show_board(self.app.board)
        self._draw_parts()
        self.action_read()

    def on_unmount(self) -> None:
        """Deliver no result any more."""
        self._read_task.cancel()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def show_board(self, board: Board) -> None:
        """Show the figures of this board."""
        if board is self._board:
            return
        self._board = board
        rows = tuple(row for row in board.processes if row.process.key == self._key)
        self._present = bool(rows)
        if rows:
            self._rows = rows
            self._history.record(rows)
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Before the screen has its widgets it can only be left."""
        return action == "leave" or is_complete(self)

    def action_read(self) -> None:
        """Read the details again."""
        pid, start_time = self._key
        if not self._is_live:
            self._show_problem("The process is in the recording that is played, not on this machine.")
        elif start_time is None:
            self._show_problem(f"Process {pid} is not visible from here: it has ended, or runs in another container.")
        else:
            self._read_task.submit(partial(self._read, pid, start_time))

    def action_attach(self) -> None:
        """Open the attach screen on this process."""
        if self._rows:
            self.app.show_process(self._rows[0])
        else:
            self.notify("This process is not on a GPU now.", severity="warning")

    def action_leave(self) -> None:
        """Show all lines again; if all are shown, leave the screen."""
        box = self.query_one("#filter", Input) if is_complete(self) else None
        if box and box.display:
            box.value, box.display = "", False
            self.query_one("#parts").focus()
        else:
            self.app.pop_screen()

    def action_filter(self) -> None:
        """Open the filter."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    @on(Input.Changed, "#filter")
    def _filter(self) -> None:
        self._draw_parts()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        self.query_one("#parts").focus()

    def action_section(self, by: int) -> None:
        """Scroll to the next part (1), or to the previous one (-1)."""
        scroll = self.query_one("#parts", VerticalScroll)
        tops = [part.virtual_region.y for part in scroll.query(StaticLines) if part.display]
        at = scroll.scroll_offset.y
        found = [top for top in tops if top > at] if by > 0 else [top for top in reversed(tops) if top < at]
        target = found[0] if found and at < scroll.max_scroll_y + (by < 0) else 0
        scroll.scroll_to(y=target, animate=False, immediate=True)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.query_one("#parts").scroll_relative(y=by, animate=False)

    def action_scroll_page(self, by: int) -> None:
        """Scroll by pages."""
        parts = self.query_one("#parts")
        parts.scroll_relative(y=by * max(1, parts.size.height - 1), animate=False)

    def action_scroll_to_edge(self, to: int) -> None:
        """Scroll to the beginning (-1), or to the end (1)."""
        parts = self.query_one("#parts")
        parts.scroll_home(animate=False) if to < 0 else parts.scroll_end(animate=False)

    @property
    def _is_live(self) -> bool:
        board = self.app.board
        return board is None or board.snapshot.source.is_live

    @property
    def _listed_part(self) -> tuple[Part, ...]:
        """What the snapshot says of the process, where it cannot be read itself."""
        return tuple(listed_part(row.process) for row in self._rows[:1])

    def _show_details(self, details: ProcessDetails) -> None:
        self._details, self._problem = details, None
        self._parts = detail_parts(details)
        self._draw()
        self._draw_parts()

    def _show_problem(self, sentence: str) -> None:
        self._problem = sentence
        self._draw()
        self._draw_parts()

    def _draw(self) -> None:
        """Draw title and figures."""
        if not is_complete(self) or not self.size.width:
            return
        width = self.size.width - 2
        self.query_one("#title", StaticLines).show(self._title(width))
        if self._present:
            lines = figure_lines(self._rows, self._history, width, live=self._is_live, ascii_only=is_ascii_only(self))
        else:
            lines = iter([Content.styled("It is not on a GPU now, so there are no figures.", MUTED)])
        self.query_one("#figures", StaticLines).show(Content("\n").join(lines), layout=True)

    def _title(self, width: int) -> Content:
        pid, start_time = self._key
        row = self._rows[0] if self._rows else None
        name = process_name(row.process) if row else ""
        user = (self._details.user if self._details else None) or (row.process.user if row else None)
        facts = [f"Process {pid}", *([name] if name else []), printable(user or "user n/a")]
        if start_time is not None:
            now = self.app.board.snapshot.time if self.app.board else time.time()
            started = datetime.fromtimestamp(start_time).astimezone()
            facts += [f"started {started:%d %b %H:%M:%S}", f"up {format_duration(max(0.0, now - start_time))}"]
        read = datetime.fromtimestamp(self._details.time).astimezone() if self._details else None
        right = Content.styled(f"details of {read:%H:%M:%S}", MUTED) if read and width >= 100 else Content()
        return left_and_right(Content(" · ".join(facts)), right, width)

    def _draw_parts(self) -> None:
        if not is_complete(self):
            return
        box = self.query_one("#filter", Input)
        words = box.value if box.display else ""
        parts = matching_parts(self._parts or self._listed_part, words)
        if self._problem is not None:
            old = [Part("Below: as last read", ())] if self._parts and parts else []
            parts = (Part("", (Content.styled(self._problem, "$text-warning"),)), *old, *parts)[:_MAX_PARTS]
        elif words.split() and not parts:
            parts = (
                Part("", (Content.styled(f"no line contains {words!r}; {shown_key('app.back')} shows all", MUTED),)),
            )
        elif not parts:
            parts = (Part("", (Content.styled("… reading the process", MUTED),)),)
        for at in range(_MAX_PARTS):
            widget = self.query_one(f"#part-{at}", StaticLines)
            widget.display = at < len(parts)
            if at < len(parts):
                title = [Content.styled(parts[at].title, "bold underline")] if parts[at].title else []
                widget.show(Content("\n").join([*title, *parts[at].lines]), layout=True)
