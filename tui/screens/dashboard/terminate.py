"""End a process: asks first, and says what came of it. Nothing is done by Enter, by Escape, or by a key held down."""

import time
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Button

from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.host.terminate import NotTerminatedError, ProcessTermination

from ...widgets.static_lines import StaticLines
from .terminate_text import still_running_text, termination_details, termination_status

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.monitor.snapshot.snapshot import ProcessKey

    from ..base import BoardApp

DEAF_SECONDS = 1.0
"""A choice that has just appeared cannot be taken yet: keys typed ahead are meant for something else. Browsers keep
the button of their warnings deaf for as long (Firefox: ``security.dialog_enable_delay``, 1000 ms)."""
_LOOK_SECONDS = 0.2
_BELOW = 8
"""Lines that frame, standing and choices take beside the question."""


class TerminateScreen(ModalScreen[bool]):
    """Asks whether a process shall end, and waits with the user until it has; returns whether it said that it has.

    Args:
        row: the process, on the GPU where it was chosen.
        ending: holds on to it.
        board: the newest figures.
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
    TerminateScreen #standing { height: auto; text-wrap: wrap; margin: 1 0; }
    TerminateScreen Horizontal { height: 1; }
    TerminateScreen Button { margin: 0 2 0 0; }
    """

    def __init__(self, row: ProcessRow, ending: ProcessTermination, board: Board) -> None:
        super().__init__()
        self._row = row
        self._ending = ending
        self._board = board
        self._refused: str | None = None
        self._said = False
        self._offered_at: dict[str, float] = {}
        """Since when a choice can be seen, by the id of its button."""

    def compose(self) -> ComposeResult:
        """The question, where it stands, and the choices; the harmless one is chosen to begin with."""
        with Vertical(id="box") as box:
            box.border_title = "Terminate this process?"
            with VerticalScroll(can_focus=False):
                yield StaticLines(id="question")
            yield StaticLines(id="standing")
            with Horizontal():
                yield Button("Leave it", id="leave", compact=True)
                yield Button("y Terminate", id="terminate", compact=True, variant="error")
                yield Button("K SIGKILL", id="kill", compact=True, variant="error")

    def on_mount(self) -> None:
        """Ask, and look after it from now on."""
        self.set_interval(_LOOK_SECONDS, self._look)
        self._look()

    def on_resize(self) -> None:
        """Other lines at another width."""
        self._look()

    def show_board(self, board: Board) -> None:
        """What it holds now."""
        self._board = board
        self._look()

    def action_leave(self) -> None:
        """Do nothing more."""
        self.dismiss(self._said)

    def action_scroll(self, by: int) -> None:
        """Show more of the question, where there is little room."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_terminate(self) -> None:
        """Send SIGTERM, where that is offered and has been for long enough to be meant."""
        if self._is_open("terminate"):
            self._send(force=False)

    def action_kill(self) -> None:
        """Send SIGKILL, where that is offered and has been for long enough to be meant."""
        if self._is_open("kill"):
            self._send(force=True)

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        """A click, or Enter on the button that has the focus."""
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
            self._ending.send(force=force)
        except NotTerminatedError as error:
            self._refused = error.message
        self._look()

    def _look(self) -> None:
        """Say how it stands, and offer what can be done now."""
        if not self.is_mounted or not self.size.width:
            return
        ending = self._ending
        scroll = self.query_one(VerticalScroll)
        scroll.styles.max_height = max(3, self.size.height - _BELOW)
        width = (self.query_one("#box").content_size.width or 60) - 1
        asked = termination_details(self._row, self._board, ending, width=width, age=self.app.feed.age_seconds)
        self.query_one("#question", StaticLines).show(asked, layout=True)
        self.query_one("#standing", StaticLines).show(termination_status(ending, self._refused), layout=True)
        self._said = ending.ended
        alive = not ending.ended and self._refused is None
        self._offer("terminate", alive and ending.sent is None)
        self._offer("kill", alive and ending.overdue)
        asks = alive and ending.sent is None
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
        button.disabled = not self._is_open(choice)

    def _is_open(self, choice: str) -> bool:
        since = self._offered_at.get(choice)
        return since is not None and time.monotonic() - since >= DEAF_SECONDS


class Terminations:
    """Asks about processes, and keeps an eye on those that were told to end and had not when the user turned away.

    Args:
        screen: where it is asked and said.
    """

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._left: dict[ProcessKey, ProcessTermination] = {}
        self._said: set[ProcessKey] = set()
        self._timer: Timer | None = None

    def ask(self, row: ProcessRow, board: Board) -> None:
        """Open the question about a process; where it is none that may be ended, say why."""
        key = row.process.key
        try:
            ending = self._left.pop(key, None) or ProcessTermination(row.process)
        except NotTerminatedError as error:
            self._screen.notify(error.message, severity="warning", markup=False)
            return
        self._said.discard(key)
        self._screen.app.push_screen(
            TerminateScreen(row, ending, board), lambda said: self._keep(ending, said=bool(said))
        )

    def _keep(self, ending: ProcessTermination, *, said: bool) -> None:
        if ending.sent is None or said:
            ending.close()
            return
        self._left[ending.process.key] = ending
        if self._timer is None:
            self._timer = self._screen.set_interval(1.0, self._look)
        self._timer.resume()

    def _look(self) -> None:
        for key, ending in list(self._left.items()):
            if ending.ended:
                self._screen.notify(termination_status(ending, None).plain, markup=False)
                self._left.pop(key).close()
            elif ending.overdue and key not in self._said:
                words = f"Process {key[0]}: {still_running_text(ending)} k asks again."
                self._screen.notify(words, severity="warning", markup=False)
                self._said.add(key)
        if not self._left and self._timer:
            self._timer.pause()
