"""An app that fits its terminal: its colours, its characters, its size, and what becomes of it."""

import os
from collections.abc import Sequence
from pathlib import Path

from textual import on
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.theme import Theme
from textual.worker import WorkerFailed

from ..draw.capabilities import ColourDepth
from .changed_cells_app import ChangedCellsApp
from .driver import TerminalDriver
from .line_filters import OutputFilters
from .too_small import MIN_SIZE, TooSmallScreen


class TerminalApp(ChangedCellsApp):
    """Draws what the terminal can show.

    Args:
        colours: how many the terminal has.
        ascii_only: draw with ASCII characters only.
    """

    def __init__(self, *, colours: ColourDepth, ascii_only: bool) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.output_filters = OutputFilters(colours, ascii_only=ascii_only)
        self.no_color = self.output_filters.colourless
        self.crash: Exception | None = None
        """What ended the app and should not have."""

    @property
    def ascii_only(self) -> bool:
        """Only ASCII characters are drawn."""
        return self.output_filters.ascii_filter.enabled

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's own, and ours after them."""
        return self.output_filters.filters(super().get_line_filters())

    def on_mount(self) -> None:
        """What the theme leaves to the terminal is on light or on dark ground."""
        self.output_filters.colour_filter.dark = self.current_theme.dark
        self.theme_changed_signal.subscribe(self, self._take_theme)

    def action_toggle_ascii(self) -> None:
        """Draw with ASCII characters only, or with all."""
        self.output_filters.ascii_filter.enabled = not self.ascii_only
        for screen in self.screen_stack:
            for widget in screen.walk_children(with_self=True):
                widget.notify_style_update()
                widget.refresh()

    def deliver_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str | None:
        """Save the picture where vramtop was started: few servers have the downloads folder that Textual takes."""
        return super().deliver_screenshot(filename, path or str(Path.cwd()), time_format)

    def check_size(self) -> None:
        """A screen may have opened over the sentence that there is no room."""
        self._say_too_small(self.size)

    def close_recording(self) -> None:
        """What was recorded is complete from here on."""

    @on(Resize)
    def _mind_new_size(self, event: Resize) -> None:
        self._say_too_small(event.size)

    def _say_too_small(self, size: Size) -> None:
        small = size.width < MIN_SIZE.width or size.height < MIN_SIZE.height
        if self.screen_stack and small != isinstance(self.screen, TooSmallScreen):
            if small:
                self.push_screen(TooSmallScreen())
            else:
                self.pop_screen()
                self.call_after_refresh(self.refresh_bindings)  # or the footer is drawn as for the sentence

    def _handle_exception(self, error: Exception) -> None:
        """End, and leave the sentence to who started the app: Textual would print pages of source code."""
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        worked = error.error if isinstance(error, WorkerFailed) else error
        self.crash = self.crash or (worked if isinstance(worked, Exception) else error)
        self._return_code = os.EX_SOFTWARE
        self._close_messages_no_wait()

    def _take_theme(self, theme: Theme) -> None:
        self.output_filters.colour_filter.dark = theme.dark
