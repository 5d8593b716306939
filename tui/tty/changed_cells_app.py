"""An app that sends a terminal only the cells that have changed, and keeps nothing of the screens that were closed."""

from typing import ClassVar

from rich.console import RenderableType
from textual._styles_cache import StylesCache
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen

from .terminal_contents import TerminalContents


class ChangedCellsApp(App[None]):
    """Compares what Textual would send with what the terminal shows already.

    Args:
        driver_class: Textual's own for this terminal when left out.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+l", "repaint", show=False)]

    def __init__(self, driver_class: type[Driver] | None = None) -> None:
        super().__init__(driver_class=driver_class)
        self._shown_cells = TerminalContents()

    def on_mount(self) -> None:
        """What other programs have written while this one was away is not known."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_repaint())

    def on_resize(self) -> None:
        """The terminal may have moved or dropped what it showed."""
        self._shown_cells.forget()

    def action_repaint(self) -> None:
        """Send the whole screen: another program may have written on it."""
        self._shown_cells.forget()
        self.refresh(layout=True)

    def pop_screen(self) -> AwaitComplete:
        """Let the drawings of a screen go with it: Textual keeps those of 1,024 widgets in a cache of colours."""
        StylesCache.get_inner_outer.cache_clear()
        return super().pop_screen()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        super()._display(screen, self._shown_cells.only_changes(renderable))
