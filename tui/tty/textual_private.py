"""The private names of Textual that vramtop uses, each with its reason.

All other modules use public names only. A newer Textual may lack any name below: then it does by itself what it
ordinarily does (it repaints whole widgets, chooses the driver, prints its own tracebacks). A test fails for
each name that is missing, and another one shows that the dashboard works without it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeGuard

from rich.console import RenderableType
from textual.app import App
from textual.driver import Driver
from textual.geometry import Size
from textual.screen import Screen
from textual.strip import Strip

__all__ = ["ChopsUpdate", "CompositorUpdate", "LayoutUpdate"]  # imported from here, too

Piece = tuple[int, int, int, Strip]
"""A painted part of a line: first column, line, column after the last one, content."""


try:
    from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
except ImportError:

    class CompositorUpdate:  # type: ignore[no-redef]
        """``_compositor.CompositorUpdate`` is what Textual sends to the terminal; it calls ``render_segments``."""

    class ChopsUpdate(CompositorUpdate):  # type: ignore[no-redef]
        """``_compositor.ChopsUpdate`` repaints some widgets; without it no update is compared, all are sent."""

    class LayoutUpdate(CompositorUpdate):  # type: ignore[no-redef]
        """``_compositor.LayoutUpdate`` repaints the whole screen; without it no update is compared, all are sent."""


try:
    from textual.drivers.linux_driver import LinuxDriver

    HAS_LINUX_DRIVER = True
except ImportError:
    LinuxDriver = Driver  # type: ignore[assignment,misc]
    HAS_LINUX_DRIVER = False
"""``drivers.linux_driver`` is public by its name, but undocumented; without it Textual chooses the driver."""


_FIELDS = {ChopsUpdate: ("chops", "chop_ends", "spans"), LayoutUpdate: ("strips", "region")}


def can_be_compared(update: object) -> TypeGuard[ChopsUpdate | LayoutUpdate]:
    """Return True if ``painted_pieces`` knows what the update paints."""
    fields = next((fields for kind, fields in _FIELDS.items() if isinstance(update, kind)), None)
    return fields is not None and all(hasattr(update, field) for field in fields)


def painted_pieces(update: ChopsUpdate | LayoutUpdate) -> Iterator[Piece]:
    """Yield the parts of lines that an update paints."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield x, y, x + strip.cell_length, strip
                x += strip.cell_length
        return
    for y, first, end in update.spans:
        for until, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if piece is not None and x < end and until > first:  # others may show what is behind another widget
                yield x, y, until, piece


def clear_styles_cache() -> None:
    """Empty the cache of ``_styles_cache.StylesCache.get_inner_outer``.

    It keeps the drawings of 1,024 widgets, also of screens that were closed.
    """
    try:
        from textual._styles_cache import StylesCache

        StylesCache.get_inner_outer.cache_clear()
    except (ImportError, AttributeError):
        return


def terminal_size_of(app: App[Any]) -> Size:
    """Return the size of the terminal as ``App._driver`` measures it now; ``App.size`` is that of the last event."""
    driver = getattr(app, "_driver", None)
    return Size(*driver.terminal_size()) if isinstance(driver, DriverHooks) else app.size


class AppHooks(App[None]):
    """Private methods of ``App`` that are overridden, under public names."""

    is_ending = False
    """True once the app was told to end: what fails then fails because widgets are gone."""

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """End the app."""
        self.is_ending = True
        super().exit(result, return_code, message)

    def reduce_update(self, update: RenderableType | None) -> RenderableType | None:
        """Return what is sent to the terminal for an update; it may be less than the update."""
        return update

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """``App._display`` sends an update to the terminal; no public method sees it on its way."""
        super()._display(screen, self.reduce_update(renderable))

    def note_crash(self, error: Exception) -> None:
        """Take note of an error that ends the app."""

    def _handle_exception(self, error: Exception) -> None:
        """``App._handle_exception`` gets every error that nothing handled; no public method does."""
        if self.is_ending:
            return
        self.note_crash(error)
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """``App._fatal_error`` prints pages of source code; ending is enough, the caller prints a sentence."""
        self.panic()


class DriverHooks(LinuxDriver):
    """Private names of ``LinuxDriver`` that are set or overridden, under public names.

    Args:
        app: the app.
        output: what to draw on: has ``write``, ``flush`` and ``fileno``.
        debug: as in ``LinuxDriver``.
        mouse: whether the mouse is used.
        size: in cells; None: that of the terminal.
    """

    def __init__(self, app: App[Any], *, output: Any, debug: bool, mouse: bool, size: tuple[int, int] | None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file: Any = output
        """``LinuxDriver._file`` is standard error otherwise, which the user may have redirected to a file."""

    def write(self, data: str) -> None:
        """``LinuxDriver.write`` asserts that its thread runs: before the start and after the end nothing is drawn."""
        with contextlib.suppress(AssertionError):
            super().write(data)

    def terminal_size(self) -> tuple[int, int]:
        """Return columns and lines of the terminal."""
        return super()._get_terminal_size()

    @property
    def answers_queries(self) -> bool:
        """True if the terminal understands questions about its abilities."""
        return True

    def _get_terminal_size(self) -> tuple[int, int]:
        """``LinuxDriver._get_terminal_size`` prefers ``COLUMNS`` and ``LINES``, which do not follow the terminal."""
        return self.terminal_size()

    def _request_terminal_sync_mode_support(self) -> None:
        """``LinuxDriver._request_terminal_sync_mode_support`` asks terminals that show the question on the screen."""
        if self.answers_queries:
            super()._request_terminal_sync_mode_support()

    def _query_in_band_window_resize(self) -> None:
        """``LinuxDriver._query_in_band_window_resize`` asks terminals that show the question on the screen."""
        if self.answers_queries:
            super()._query_in_band_window_resize()
