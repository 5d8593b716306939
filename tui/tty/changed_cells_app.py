"""An app that sends only changed cells to the terminal, and keeps nothing of closed screens."""

import asyncio
from typing import ClassVar

from rich.console import RenderableType
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.driver import Driver
from textual.events import Event, Key, Paste

from ..keys import TERMINAL_KEYS
from .terminal_contents import TerminalContents
from .textual_private import AppHooks, clear_styles_cache

_READY_SECONDS = 2.0
"""Time after which a key for a screen that does not open is dropped."""
_READY_CHECKS = 400


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

    async def on_event(self, event: Event) -> None:
        """Keep a key until the screen in front, which an earlier key has opened, can take it."""
        if isinstance(event, Key | Paste) and not await self._is_screen_ready():
            return
        await super().on_event(event)

    async def _is_screen_ready(self) -> bool:
        for _ in range(_READY_CHECKS):
            if self.is_ending or not self.screen_stack:
                return False
            if self.screen.is_mounted:
                return True
            await asyncio.sleep(_READY_SECONDS / _READY_CHECKS)
        return False

    def action_command_palette(self) -> None:
        """Open the palette; without an id, as Textual's would have while the one before is still closing."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette())

    def pop_screen(self) -> AwaitComplete:
        """Close the screen, and let go of its drawings; the last one stays, if its key was pressed too often."""
        if len(self.screen_stack) <= 1:
            return AwaitComplete()
        clear_styles_cache()
        return super().pop_screen()

    def reduce_update(self, update: RenderableType | None) -> RenderableType | None:
        """Return the changed cells of an update."""
        return self._contents.only_changes(update)
