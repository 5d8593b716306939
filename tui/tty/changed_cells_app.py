"""An app that sends only changed cells to the terminal, and keeps nothing of closed screens."""

from typing import ClassVar

from rich.console import RenderableType
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.driver import Driver

from ..keys import TERMINAL_KEYS
from .terminal_contents import TerminalContents
from .textual_private import AppHooks, clear_styles_cache


class ChangedCellsApp(AppHooks):
    """Compares what Textual would send with what the terminal shows already.

    Args:
        driver_class: None: Textual's own for this terminal.
    """

    BINDINGS: ClassVar[list[BindingType]] = TERMINAL_KEYS

    def __init__(self, driver_class: type[Driver] | None = None) -> None:
        super().__init__(driver_class=driver_class)
        self._contents = TerminalContents()

    def on_mount(self) -> None:
        """Repaint after a suspension: other programs may have written on the terminal."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_repaint())

    def on_resize(self) -> None:
        """Send the next update whole: the terminal may have moved or dropped lines."""
        self._contents.invalidate()

    def action_repaint(self) -> None:
        """Send the whole screen: another program may have written on it."""
        self._contents.invalidate()
        self.refresh(layout=True)

    def pop_screen(self) -> AwaitComplete:
        """Close the screen, and let go of its drawings."""
        clear_styles_cache()
        return super().pop_screen()

    def reduce_update(self, update: RenderableType | None) -> RenderableType | None:
        """Return the changed cells of an update."""
        return self._contents.only_changes(update)
