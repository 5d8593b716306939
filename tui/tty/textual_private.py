"""The private names of Textual that vramtop uses, each with its reason.

All other modules use public names only. A newer Textual may lack any name below: then it does by itself what it
ordinarily does (it chooses the driver, prints its own tracebacks). A test fails for
each name that is missing, and another one shows that the dashboard works without it.
"""

import contextlib
from typing import Any

from rich.console import RenderableType
from textual.app import App
from textual.driver import Driver
from textual.geometry import Size

try:
    from textual.drivers.linux_driver import LinuxDriver

    HAS_LINUX_DRIVER = True
except ImportError:
    LinuxDriver = Driver  # type: ignore[assignment,misc]
    HAS_LINUX_DRIVER = False
"""``drivers.linux_driver`` is public by its name, but undocumented; without it Textual chooses the driver."""


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
