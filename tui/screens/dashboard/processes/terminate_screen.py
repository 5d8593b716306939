"""Terminate a process: asks first, and reports the outcome. Enter, Escape or a key held down send no signal."""

import time
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Button

from vramtop.monitor.board import Board, ProcessRow
from vramtop.monitor.host import NotTerminatedError, ProcessTermination

from ....widgets import StaticLines
from .terminate_text import still_running_text, termination_details, termination_status

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.monitor.snapshot import ProcessKey

    from ...base import BoardApp

ARMING_SECONDS = 1.0
"""A choice works only this long after it appeared: keys typed ahead are meant for something else. Browsers delay the
button of their warnings as long (Firefox: ``security.dialog_enable_delay``, 1000 ms)."""
_REFRESH_SECONDS = 0.2
_FRAME_LINES = 8
"""Lines of frame, status and choices around the details."""


class TerminateScreen(ModalScreen[bool]):
    """Asks whether to terminate a process, and shows its state until it has ended; returns True if it showed the end.

    Args:
        row: the process, on the GPU where it was selected.
        termination: signals and watches the process.
        board: the latest board.
    """

    app: "BoardApp"
    AUTO_FOCUS = "#leave"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,q", "leave", "Leave it"),
        Binding("y", "terminate", "Terminate"),
        Binding("K", "kill", "SIGKILL"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]
    DEFAULT_CSS = """
    TerminateScreen { align: center middle; }
    TerminateScreen #box {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $error; padding: 0 1;
    }
    TerminateScreen VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    TerminateScreen #status { height: auto; text-wrap: wrap; margin: 1 0; }
    TerminateScreen Horizontal { height: 1; }
    TerminateScreen Button { margin: 0 2 0 0; }
    """

    def __init__(self, row: ProcessRow, termination: ProcessTermination, board: Board) -> None:
        super().__init__()
        self._row = row
        self._termination = termination
        self._board = board
        self._refused: str | None = None
        self._shows_end = False
        self._offered_at: dict[str, float] = {}
        """Time at which each choice appeared, by the id of its button; monotonic seconds."""

    def compose(self) -> ComposeResult:
        """The details, the status, and the choices; the harmless one has the focus at first."""
        with Vertical(id="box") as box:
            box.border_title = "Terminate this process?"
            with VerticalScroll(can_focus=False):
                yield StaticLines(id="details")
            yield StaticLines(id="status")
            with Horizontal():
                yield Button("Leave it", id="leave", compact=True)
                yield Button("y Terminate", id="terminate", compact=True, variant="error")
                yield Button("K SIGKILL", id="kill", compact=True, variant="error")

    def on_mount(self) -> None:
        """Draw, and refresh several times a second."""
        self.set_interval(_REFRESH_SECONDS, self._refresh_state)
        self._refresh_state()

    def on_resize(self) -> None:
        """Draw for the new width."""
        self._refresh_state()

    def show_board(self, board: Board) -> None:
        """Show what the process holds now."""
        self._board = board
        self._refresh_state()

    def action_leave(self) -> None:
        """Close without another signal."""
        self.dismiss(self._shows_end)

    def action_scroll(self, by: int) -> None:
        """Scroll the details, on small terminals."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_terminate(self) -> None:
        """Send SIGTERM, if that choice is armed."""
        if self._is_armed("terminate"):
            self._send(force=False)

    def action_kill(self) -> None:
        """Send SIGKILL, if that choice is armed."""
        if self._is_armed("kill"):
            self._send(force=True)

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        """Run the action of a button, on a click or Enter."""
        event.stop()
        match event.button.id:
            case "terminate":
                self.action_terminate()
            case "kill":
                self.action_kill()
            case _:
                self.action_leave()

    def _send(self, *, force: bool) -> None:
        try:
            self._termination.send(force=force)
        except NotTerminatedError as error:
            self._refused = error.message
        self._refresh_state()

    def _refresh_state(self) -> None:
        """Draw the details and the status, and offer what can be done now."""
        if not self.is_mounted or not self.size.width:
            return
        termination = self._termination
        scroll = self.query_one(VerticalScroll)
        scroll.styles.max_height = max(3, self.size.height - _FRAME_LINES)
        width = (self.query_one("#box").content_size.width or 60) - 1
        details = termination_details(self._row, self._board, termination, width=width, age=self.app.feed.age_seconds)
        self.query_one("#details", StaticLines).show(details, layout=True)
        self.query_one("#status", StaticLines).show(termination_status(termination, self._refused), layout=True)
        self._shows_end = termination.ended
        alive = not termination.ended and self._refused is None
        self._offer("terminate", alive and termination.sent is None)
        self._offer("kill", alive and termination.overdue)
        asks = alive and termination.sent is None
        self.query_one("#leave", Button).label = "Leave it" if asks else "Close"
        self.query_one("#box").border_subtitle = "Esc leaves it alone" if asks else "Esc closes"

    def _offer(self, choice: str, offered: bool) -> None:
        button = self.query_one(f"#{choice}", Button)
        if not offered:
            self._offered_at.pop(choice, None)
            if button.has_focus:
                self.query_one("#leave").focus()
        elif choice not in self._offered_at:
            self._offered_at[choice] = time.monotonic()
        button.display = offered
        button.disabled = not self._is_armed(choice)

    def _is_armed(self, choice: str) -> bool:
        since = self._offered_at.get(choice)
        return since is not None and time.monotonic() - since >= ARMING_SECONDS


class Terminations:
    """Asks about processes, and reports on those that had not ended when the user closed the question.

    Args:
        screen: the screen that asks and reports.
    """

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._unfinished: dict[ProcessKey, ProcessTermination] = {}
        self._reported: set[ProcessKey] = set()
        self._timer: Timer | None = None

    def ask(self, row: ProcessRow, board: Board) -> None:
        """Ask about a process, or say why it may not be terminated."""
        key = row.process.key
        try:
            termination = self._unfinished.pop(key, None) or ProcessTermination(row.process)
        except NotTerminatedError as error:
            self._screen.notify(error.message, severity="warning", markup=False)
            return
        self._reported.discard(key)
        self._screen.app.push_screen(
            TerminateScreen(row, termination, board), lambda shown: self._watch(termination, end_shown=bool(shown))
        )

    def _watch(self, termination: ProcessTermination, *, end_shown: bool) -> None:
        if termination.sent is None or end_shown:
            termination.close()
            return
        self._unfinished[termination.process.key] = termination
        if self._timer is None:
            self._timer = self._screen.set_interval(1.0, self._refresh_state)
        self._timer.resume()

    def _refresh_state(self) -> None:
        for key, termination in list(self._unfinished.items()):
            if termination.ended:
                self._screen.notify(termination_status(termination, None).plain, markup=False)
                self._unfinished.pop(key).close()
            elif termination.overdue and key not in self._reported:
                words = f"Process {key[0]}: {still_running_text(termination)} k asks again."
                self._screen.notify(words, severity="warning", markup=False)
                self._reported.add(key)
        if not self._unfinished and self._timer:
            self._timer.pause()
