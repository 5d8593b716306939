"""An app that adapts to its terminal: colours, characters, size, and how it ends."""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.driver import Driver
from textual.events import Event, Key, Paste, Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen
from textual.strip import Strip
from textual.theme import Theme
from textual.widgets import Static
from textual.worker import WorkerFailed

from vramtop.estimator.common.paths import current_folder
from vramtop.estimator.common.private_files import open_private

from ..draw.palette import MIN_TEXT_CONTRAST
from ..draw.text_output import ColourDepth
from ..keys import TERMINAL_KEYS, key_name, shown_key
from .driver import RecordingApp, TerminalDriver
from .line_filters import OutputFilters
from .textual_private import (
    HAS_LINUX_DRIVER,
    ChopsUpdate,
    CompositorUpdate,
    LayoutUpdate,
    can_be_compared,
    clear_styles_cache,
    painted_pieces,
    terminal_size_of,
)

if TYPE_CHECKING:
    from textual.timer import Timer

# The contents of the terminal, compared with each update so that only changed cells are sent.
#
# Textual sends every line of a repainted widget with its colours: some 100 bytes for each changed figure, every
# second, over every connection. Here lines are compared with those that were sent last.


_MAX_GAP_CELLS = 8
"""Unchanged cells between two changes that are sent again: moving the cursor takes as many bytes."""
_StyledChar = tuple[str, Style | None]
"""A character and its style; an empty character is the right half of a wide one."""


class TerminalContents:
    """The lines that were sent to a terminal and that it still shows."""

    def __init__(self) -> None:
        self._lines: list[dict[int, tuple[int, Strip]]] = []
        """For each line, by first column: the column after the last one, and the content between."""

    def invalidate(self) -> None:
        """Assume that the terminal may show anything."""
        self._lines = []

    def only_changes(self, update: RenderableType | None) -> RenderableType | None:
        """Return an update of the cells that the terminal does not show yet; an unknown update is sent as it is."""
        if can_be_compared(update):
            return _ChangedCells(self, update)
        if update is not None:
            self.invalidate()
        return update

    def send(self, update: ChopsUpdate | LayoutUpdate, console: Console) -> str:
        """Return what is written to the terminal for an update, and remember what it shows then."""
        is_new = not self._lines and isinstance(update, LayoutUpdate)
        writer = _CellWriter(COLOR_SYSTEMS.get(console.color_system or "", ColorSystem.TRUECOLOR))
        for x, y, until, strip in painted_pieces(update):
            self._lines += [{} for _ in range(y + 1 - len(self._lines))]
            if is_new:
                self._lines[y][x] = (until, strip)
            else:
                self._send_piece(writer, x, y, until, strip)
        return update.render_segments(console) if is_new else writer.finish()

    def _send_piece(self, writer: "_CellWriter", x: int, y: int, until: int, strip: Strip) -> None:
        line = self._lines[y]
        shown_until, shown = line.get(x, (0, None))
        if shown_until == until and shown is not None:
            if shown is not strip:
                for column, chars in changed_cells(shown, strip):
                    writer.write(x + column, y, chars)
        else:
            writer.write(x, y, _styled_chars(list(strip)))
            for start in [start for start, (stop, _) in line.items() if start < until and stop > x]:
                del line[start]
        if strip.cell_length == until - x:
            line[x] = (until, strip)
        else:
            line.pop(x, None)


class _ChangedCells(CompositorUpdate):
    """An update that is compared when it is sent: Textual makes some updates that it never sends."""

    def __init__(self, contents: TerminalContents, update: ChopsUpdate | LayoutUpdate) -> None:
        self._contents = contents
        self._update = update

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the whole update, for anything but the terminal."""
        yield self._update

    def render_segments(self, console: Console) -> str:
        """Return what is written to the terminal."""
        return self._contents.send(self._update, console)


def changed_cells(before: Strip, after: Strip) -> Iterator[tuple[int, Sequence[_StyledChar]]]:
    """Yield the parts of a line that differ: first column, and characters. Equal segments at its ends cost nothing."""
    old, new = list(before), list(after)
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    shorter -= head
    tail = next((at for at in range(shorter) if old[-1 - at] != new[-1 - at]), shorter)
    x = sum(cell_len(segment.text) for segment in new[:head])
    old_chars, chars = _styled_chars(old[head : len(old) - tail]), _styled_chars(new[head : len(new) - tail])
    if len(old_chars) != len(chars):
        yield 0, _styled_chars(new)
        return
    for start, end in _stretches([at for at, char in enumerate(chars) if char != old_chars[at]]):
        while start and not chars[start][0]:  # a wide character is sent as a whole
            start -= 1  # noqa: PLW2901
        while end < len(chars) and not chars[end][0]:
            end += 1  # noqa: PLW2901
        yield x + start, chars[start:end]


def _stretches(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Merge ranges of columns that lie close together; each is (first, after the last)."""
    if not columns:
        return []
    breaks = [(left + 1, right) for left, right in pairwise(columns) if right - left - 1 > _MAX_GAP_CELLS]
    starts = [columns[0], *(right for _, right in breaks)]
    ends = [*(left for left, _ in breaks), columns[-1] + 1]
    return list(zip(starts, ends, strict=True))


def _styled_chars(segments: Sequence[Segment]) -> list[_StyledChar]:
    """Return one entry for each cell."""
    chars: list[_StyledChar] = []
    for text, style, _ in segments:
        if text.isascii() or _is_narrow(text):
            chars += [(char, style) for char in text]
            continue
        for char in text:
            width = cell_len(char)
            if width:
                chars += [(char, style), *[("", style)] * (width - 1)]
            elif chars:  # it combines with the character before it
                at = -1 if chars[-1][0] else -2
                chars[at] = (chars[at][0] + char, style)
    return chars


@lru_cache(maxsize=1024)
def _is_narrow(text: str) -> bool:
    """Return True if each character takes one cell."""
    return all(cell_len(char) == 1 for char in text)


class _CellWriter:
    """Writes cells with as few changes of style as possible."""

    def __init__(self, colours: ColorSystem) -> None:
        self._colours = colours
        self._written: list[str] = []
        self._codes = ""
        """SGR codes of the style that the terminal has now."""

    def write(self, x: int, y: int, chars: Sequence[_StyledChar]) -> None:
        """Move the cursor and write these characters."""
        self._written.append(f"\x1b[{y + 1};{x + 1}H")
        style: Style | None = None
        link = None
        for char, wanted in chars:
            if wanted is not style:
                style = wanted
                link = style.link if style else None
                self._change_style(_sgr_codes(style, self._colours) if style else "")
            if link and style is not None and char:
                self._written.append(Strip.render_style(style, char, self._colours))
                self._codes = ""
            else:
                self._written.append(char)

    def finish(self) -> str:
        """Reset the style and return all that was written."""
        self._change_style("")
        return "".join(self._written)

    def _change_style(self, codes: str) -> None:
        if codes != self._codes:
            reset = "0;" if self._codes and codes else ""
            self._written.append(f"\x1b[{reset}{codes or '0'}m")
            self._codes = codes


@lru_cache(maxsize=1024)
def _sgr_codes(style: Style, colours: ColorSystem) -> str:
    return Strip.render_ansi(style, colours)


# An app that sends only changed cells to the terminal, and keeps nothing of closed screens.


_READY_SECONDS = 2.0
"""Time after which a key for a screen that does not open is dropped."""
_READY_CHECKS = 400


class ChangedCellsApp(RecordingApp):
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


# Tells whether this process is a dashboard in the browser: ``vramtop serve`` starts it, and there is no terminal.


SERVED_DRIVER = "vramtop.tui.tty.served_driver:ServedDriver"
"""Value of Textual's variable ``TEXTUAL_DRIVER`` in such a process."""


def is_served() -> bool:
    """Return True if a browser shows this dashboard."""
    return os.environ.get("TEXTUAL_DRIVER") == SERVED_DRIVER


# The screen of a terminal that is too small for any other screen.


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


TEXT_CONTRAST_VARIABLE = "text-contrast"
"""Variable of a theme: the contrast that its text gets at least, if not 4.5."""
_RESIZE_SETTLED_SECONDS = 0.25
"""Time without a resize after which the last size is repeated: an older one may have come last."""


class TerminalApp(ChangedCellsApp):
    """Draws what the terminal can show.

    Args:
        colours: number of colours that the terminal has.
        ascii_only: draw with ASCII characters only.
    """

    def __init__(self, *, colours: ColourDepth, ascii_only: bool) -> None:
        super().__init__(driver_class=_driver_class())
        self.output_filters = OutputFilters(colours, ascii_only=ascii_only)
        self.no_color = self.output_filters.colourless
        self.crash: Exception | None = None
        """The unexpected error that ended the app."""
        self._was_sized = False
        """True once the terminal's first size is known."""
        self._settled: Timer | None = None
        """Fires when no further resize follows."""

    @property
    def ascii_only(self) -> bool:
        """True if only ASCII characters are drawn."""
        return self.output_filters.ascii_filter.enabled

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, then those of vramtop."""
        return self.output_filters.combine(super().get_line_filters())

    def on_mount(self) -> None:
        """Follow the theme: where it leaves the ground to the terminal, that is taken for light or dark."""
        self._follow_theme(self.current_theme)
        self.theme_changed_signal.subscribe(self, self._follow_theme)

    def action_toggle_ascii(self) -> None:
        """Draw with ASCII characters only, or with all characters."""
        self.output_filters.ascii_filter.enabled = not self.ascii_only
        self.draw_again()

    def draw_again(self) -> None:
        """Draw all lines of all screens again: characters or colours have changed."""
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
        colour_filter = self.output_filters.colour_filter
        colour_filter.dark = theme.dark
        colour_filter.text_contrast = float(theme.variables.get(TEXT_CONTRAST_VARIABLE, MIN_TEXT_CONTRAST))


def _driver_class() -> type[Driver] | None:
    """Return the driver of this terminal; None: Textual's own, or the one of a dashboard in the browser."""
    if is_served() or not HAS_LINUX_DRIVER:
        return None
    return TerminalDriver
