"""An app that adapts to its terminal: colours, characters, size, and how it ends."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.events import Event, Key, Paste, Resize
from textual.filter import LineFilter, Monochrome, NoColor
from textual.geometry import Size
from textual.screen import Screen
from textual.theme import Theme
from textual.timer import Timer
from textual.widgets import Static
from textual.worker import WorkerFailed

from vramtop.estimator.common.paths import current_folder
from vramtop.estimator.common.private_files import open_private

from ..draw.colours import MIN_TEXT_CONTRAST
from ..draw.terminal_capabilities import ColourDepth
from ..keys import TERMINAL_KEYS, key_name, shown_key
from .changed_cells import TerminalContents
from .driver import TerminalDriver
from .line_filters import AsciiFilter, ColourlessFilter, ControlCharacterFilter, ReadableFilter
from .served import is_served
from .textual_private import HAS_LINUX_DRIVER, AppHooks, clear_styles_cache, terminal_size_of

TEXT_CONTRAST_VARIABLE = "text-contrast"
"""Variable of a theme: the contrast that its text gets at least, if not 4.5."""
_RESIZE_SETTLED_SECONDS = 0.25
"""Time without a resize after which the last size is repeated: an older one may have come last."""
_READY_SECONDS = 2.0
"""Time after which a key for a screen that does not open is dropped."""
_READY_CHECKS = 400


class TerminalApp(AppHooks):
    """Draws what the terminal can show.

    Args:
        colours: number of colours that the terminal has.
        ascii_only: draw with ASCII characters only.
    """

    BINDINGS: ClassVar[list[BindingType]] = TERMINAL_KEYS

    def __init__(self, *, colours: ColourDepth, ascii_only: bool) -> None:
        # a dashboard in the browser has a driver of its own
        super().__init__(driver_class=TerminalDriver if HAS_LINUX_DRIVER and not is_served() else None)
        self.no_color = colours == "none"
        self.colour_filter = ColourlessFilter() if self.no_color else ReadableFilter()
        self._ascii_filter, self._control_characters = AsciiFilter(ascii_only), ControlCharacterFilter()
        self._contents = TerminalContents()
        self.crash: Exception | None = None
        """The unexpected error that ended the app."""
        self._was_sized = False
        """True once the terminal's first size is known."""
        self._settled: Timer | None = None
        """Fires when no further resize follows."""

    @property
    def ascii_only(self) -> bool:
        """True if only ASCII characters are drawn."""
        return self._ascii_filter.enabled

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, then these; Textual's own for NO_COLOR are left out, since they still use greys."""
        kept = [each for each in super().get_line_filters() if not isinstance(each, (Monochrome, NoColor))]
        return [*kept, self.colour_filter, self._control_characters, *([self._ascii_filter] if self.ascii_only else [])]

    def on_mount(self) -> None:
        """Follow the theme: where it leaves the ground to the terminal, that is taken for light or dark."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_repaint())  # others may have written meanwhile
        self._follow_theme(self.current_theme)
        self.theme_changed_signal.subscribe(self, self._follow_theme)

    def action_repaint(self) -> None:
        """Draw the whole screen: another program may have written on it."""
        self._contents.invalidate()
        self.refresh(layout=True)

    def close_recording(self) -> None:
        """Complete the recording; called also where a signal ends the app and something hangs."""

    def reduce_update(self, update: RenderableType | None) -> RenderableType | None:
        """Return the changed cells of an update."""
        return self._contents.only_changes(update)

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

    def action_toggle_ascii(self) -> None:
        """Draw with ASCII characters only, or with all characters."""
        self._ascii_filter.enabled = not self.ascii_only
        for screen in self.screen_stack:
            for widget in screen.walk_children(with_self=True):
                widget.notify_style_update()
                widget.refresh()

    def get_key_display(self, binding: Binding) -> str:
        """Return the key as vramtop writes keys: ``Esc``, ``F2``, ``Ctrl+K``."""
        return binding.key_display or key_name(binding.key)

    def deliver_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str | None:
        """Save the picture in the current folder: few servers have the downloads folder that Textual uses.

        Textual's folder is used where the current one was removed.
        """
        filename = filename or time.strftime("vramtop-%Y%m%d-%H%M%S.svg")
        folder = path or current_folder()
        if folder is not None:
            try:
                open_private(Path(folder) / filename).close()
            except OSError as error:
                self.notify(f"{filename} cannot be written: {error.strerror}", severity="error")
                return None
        return super().deliver_screenshot(filename, folder, time_format)

    def check_size(self) -> None:
        """Show or hide the screen for a terminal that is too small, and repair a size that is not the terminal's.

        Called once a second: another screen may have opened; and of two signals that a busy machine handles at once,
        the older size may come last.
        """
        self._show_if_too_small(self.size)
        if self.screen_stack and not self.size == self.screen.outer_size == terminal_size_of(self):
            self._repeat_size()

    def note_crash(self, error: Exception) -> None:
        """Keep the first error that ends the app, for the caller to report."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.crash = self.crash or (cause if isinstance(cause, Exception) else error)

    @on(Resize)
    def _check_new_size(self, event: Resize) -> None:
        self._contents.invalidate()  # the terminal may have moved or dropped lines
        self._show_if_too_small(event.size)
        if self._settled is not None:
            self._settled.stop()
        if self._was_sized:
            self._settled = self.set_timer(_RESIZE_SETTLED_SECONDS, self._repeat_size)
        self._was_sized = True

    def _repeat_size(self) -> None:
        """Give the app, or the screen in front, the size of the terminal: either may have got an older one last."""
        size = terminal_size_of(self)
        if size != self.size:
            self.post_message(Resize(size, size))
        elif self.screen_stack:
            self.screen.post_message(Resize(size, size))

    def _show_if_too_small(self, size: Size) -> None:
        is_small = size.width < MIN_SIZE.width or size.height < MIN_SIZE.height
        if self.screen_stack and is_small != isinstance(self.screen, TooSmallScreen):
            if is_small:
                self.push_screen(TooSmallScreen())
            else:
                self.pop_screen()
                self.call_after_refresh(self.refresh_bindings)  # otherwise the keys of TooSmallScreen stay

    def _follow_theme(self, theme: Theme) -> None:
        self.colour_filter.dark = theme.dark
        self.colour_filter.text_contrast = float(theme.variables.get(TEXT_CONTRAST_VARIABLE, MIN_TEXT_CONTRAST))


MIN_SIZE = Size(40, 10)
"""In a smaller terminal no screen has room for its first line and its keys."""


class TooSmallScreen(Screen[None]):
    """One sentence with the size that is needed."""

    DEFAULT_CSS = """
    TooSmallScreen { overflow: hidden; }
    TooSmallScreen Static { width: 100%; height: auto; }
    """

    def compose(self) -> ComposeResult:
        """The sentence."""
        yield Static(id="sentence", markup=False)

    def on_resize(self) -> None:
        """Write the size that is there and the size that is needed."""
        width, height = self.size
        needed = f"{MIN_SIZE.width} x {MIN_SIZE.height}"
        self.query_one(Static).update(
            f"too small: {width} x {height} here, vramtop needs {needed}; {shown_key('app.quit')} quits"
        )
