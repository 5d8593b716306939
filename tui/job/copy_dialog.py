"""A dialog with a text that was copied to the clipboard, to select it where the terminal has no clipboard."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from ..keys import bind, shown_key

_CLIPBOARD_HELP = (
    "Sent to the terminal's clipboard (OSC 52). If nothing arrives there, hold Shift (Option on a Mac) and select "
    "it with the mouse; in tmux: set -g set-clipboard on."
)


class CopiedTextScreen(ModalScreen[None]):
    """Shows the text.

    Args:
        text: that was copied.
        title: of the dialog.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.back", "dismiss", "Back"),
        bind("app.quit", "dismiss", help_text=""),
        Binding("enter", "dismiss", show=False),
    ]
    DEFAULT_CSS = """
    CopiedTextScreen { align: center middle; }
    CopiedTextScreen Vertical {
        width: 100%; height: auto; max-height: 100%; background: $surface; border-top: solid $primary;
        border-bottom: solid $primary;
    }
    CopiedTextScreen TextArea { height: auto; max-height: 16; border: none; padding: 0; }
    CopiedTextScreen Static { height: auto; color: $text-muted; }
    """

    def __init__(self, text: str, title: str) -> None:
        super().__init__()
        self._text = text
        self._heading = title

    def compose(self) -> ComposeResult:
        """Yield the text without borders at the sides, so that the terminal selects only the text."""
        with Vertical() as box:
            box.border_title = self._heading
            box.border_subtitle = f"{shown_key('app.back')} closes"
            yield TextArea(self._wrapped(), read_only=True, soft_wrap=True, show_cursor=False, compact=True)
            yield Static(_CLIPBOARD_HELP, markup=False)

    def _wrapped(self) -> str:
        """Return the text with long commands broken between flags, as a shell accepts them."""
        lines = self._text.splitlines()
        long = (line.replace(" --", " \\\n  --") if len(line) >= self.app.size.width - 2 else line for line in lines)
        return "\n".join(long)

    def on_mount(self) -> None:
        """Let the arrow keys scroll the text."""
        self.query_one(TextArea).focus()
