"""The question which signal to send to processes; Enter, Escape or a key held down send none."""

import signal
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Button

from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.host.terminate import TerminationBatch

from ...keys import bind, shown_key
from ...widgets.static_lines import StaticLines
from ..base import BoardApp, DrawnScreen
from .signal_text import batch_status, signal_details

SIGNAL_KEYS = [
    bind("app.back", "leave", "Leave it"),
    bind("signal.leave", "leave"),
    bind("signal.terminate", "send('terminate')", "TERM"),
    bind("signal.interrupt", "send('interrupt')", "INT"),
    bind("signal.kill", "send('kill')", "KILL"),
    bind("list.fold", "app.focus_previous"),
    bind("list.unfold", "app.focus_next", help_text=""),
    bind("list.up", "scroll(-1)"),
    bind("list.down", "scroll(1)"),
]
ARMING_SECONDS = 1.0
"""A choice works only this long after it appeared: keys typed ahead are meant for something else. Browsers delay the
button of their warnings as long (Firefox: ``security.dialog_enable_delay``, 1000 ms)."""
_SIGNALS = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT, "kill": signal.SIGKILL}
"""By the id of the button."""
_REFRESH_SECONDS = 0.2
_FRAME_LINES = 8
"""Lines of frame, status and choices around the details."""


def ask_which_signal(screen: Screen[None], rows: Sequence[ProcessRow], board: Board) -> None:
    """Ask which signal to send to processes, or say why none may be sent.

    Args:
        screen: the screen that asks.
        rows: the processes; one that is on several GPUs counts once.
        board: the latest board.
    """
    chosen = {row.process.key: row for row in reversed(rows)}
    rows = [chosen[key] for key in dict.fromkeys(row.process.key for row in rows)]
    batch = TerminationBatch(row.process for row in rows)
    if batch.running or not batch.refused:
        screen.app.push_screen(TerminateScreen(rows, batch, board))
    else:
        screen.notify("\n".join(batch.refused.values()), severity="warning", markup=False)
        batch.close()


class TerminateScreen(ModalScreen[None], DrawnScreen[None]):
    """Asks which signal to send to processes, and shows their state until they have ended.

    Args:
        rows: the processes, each on one of the GPUs where it was selected.
        batch: signals and watches them.
        board: the latest board.
    """

    app: "BoardApp"
    AUTO_FOCUS = "#leave"
    BINDINGS: ClassVar[list[BindingType]] = [*SIGNAL_KEYS]
    DEFAULT_CSS = """
    TerminateScreen { align: center middle; }
    TerminateScreen #box {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $error; padding: 0 1;
    }
    TerminateScreen VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    TerminateScreen #status { height: auto; text-wrap: wrap; margin: 1 0; }
    TerminateScreen Horizontal { height: 1; }
    TerminateScreen Button { margin: 0 2 0 0; min-width: 8; }
    """

    def __init__(self, rows: Sequence[ProcessRow], batch: TerminationBatch, board: Board) -> None:
        super().__init__()
        self._rows = rows
        self._batch = batch
        self._board = board
        self._offered_at: dict[str, float] = {}
        """Time at which each choice appeared, by the id of its button; monotonic seconds."""

    def compose(self) -> ComposeResult:
        """The details, the status, and the choices; the harmless one has the focus at first."""
        with Vertical(id="box") as box:
            count = len(self._rows)
            box.border_title = "Signal this process?" if count == 1 else f"Signal these {count} processes together?"
            with VerticalScroll(can_focus=False):
                yield StaticLines(id="details")
            yield StaticLines(id="status")
            with Horizontal():
                yield Button("Leave it", id="leave", compact=True)
                for name, word in (("terminate", "TERM"), ("interrupt", "INT"), ("kill", "KILL")):
                    yield Button(f"{shown_key(f'signal.{name}')} {word}", id=name, compact=True, variant="error")

    def on_mount(self) -> None:
        """Draw, and refresh several times a second."""
        self.set_interval(_REFRESH_SECONDS, self.redraw)
        self.redraw()

    def show_board(self, board: Board) -> None:
        """Show what the process holds now."""
        self._board = board
        self.redraw()

    def on_unmount(self) -> None:
        """Watch the processes no longer."""
        self._batch.close()

    def action_leave(self) -> None:
        """Close without another signal."""
        self.dismiss()

    def action_scroll(self, by: int) -> None:
        """Scroll the details, on small terminals."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_send(self, choice: str) -> None:
        """Send the signal of a choice, if it is armed."""
        if self._is_armed(choice):
            self._batch.send(_SIGNALS[choice])
            self.redraw()

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        """Run the action of a button, on a click or Enter."""
        event.stop()
        if event.button.id in _SIGNALS:
            self.action_send(event.button.id)
        else:
            self.action_leave()

    def draw(self) -> None:
        """Draw the details and the status, and offer what can be done now."""
        batch = self._batch
        self.query_one(VerticalScroll).styles.max_height = max(3, self.size.height - _FRAME_LINES)
        width = (self.query_one("#box").content_size.width or 60) - 1
        details = signal_details(self._rows, self._board, batch, width=width, age=self.app.feed.age_seconds)
        self.query_one("#details", StaticLines).show(details, layout=True)
        self.query_one("#status", StaticLines).show(batch_status(batch), layout=True)
        asks = bool(batch.running) and batch.sent is None
        self._offer("terminate", asks)
        self._offer("interrupt", asks)
        self._offer("kill", asks or batch.overdue)
        leave = "Leave it" if len(self._rows) == 1 else "Leave them"
        self.query_one("#leave", Button).label = leave if asks else "Close"
        self.query_one("#box").border_subtitle = f"{shown_key('app.back')} {'sends nothing' if asks else 'closes'}"

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
