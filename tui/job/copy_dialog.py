"""A text to take along: it went to the clipboard where the terminal has one, and can be selected where it has not."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

_HOW = (
    "Sent to the terminal's clipboard (OSC 52). Where nothing arrives there: hold Shift (Option on a Mac) and select "
    "it with the mouse; in tmux: set -g set-clipboard on."
)


class ShowTextScreen(ModalScreen[None]):
    """Shows the text.

    Args:
        text: what was copied.
        title: what it is.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Back")]
    DEFAULT_CSS = """
    ShowTextScreen { align: center middle; }
    ShowTextScreen Vertical {
        width: 100%; height: auto; max-height: 100%; background: $surface; border-top: solid $primary;
        border-bottom: solid $primary;
    }
    ShowTextScreen TextArea { height: auto; max-height: 16; border: none; padding: 0; }
    ShowTextScreen Static { height: auto; color: $text-muted; }
    """

    def __init__(self, text: str, title: str) -> None:
        super().__init__()
        self._text = text
        self._heading = title

    def compose(self) -> ComposeResult:
        """No border at the sides: what is selected by the terminal is the text alone."""
        with Vertical() as box:
            box.border_title = self._heading
            box.border_subtitle = "Esc closes"
            yield TextArea(self._broken(), read_only=True, soft_wrap=True, show_cursor=False, compact=True)
            yield Static(_HOW, markup=False)

    def _broken(self) -> str:
        """Commands that are too long for a line are broken between flags, as a shell takes it."""
        lines = self._text.splitlines()
        long = (line.replace(" --", " \\\n  --") if len(line) >= self.app.size.width - 2 else line for line in lines)
        return "\n".join(long)

    def on_mount(self) -> None:
        """Scroll with the arrows."""
        self.query_one(TextArea).focus()
