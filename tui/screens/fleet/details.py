"""The screen of one host or one run of the fleet, which follows the readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen

from ...draw import MUTED
from ...widgets import ContentLines, KeysLine, StaticLines
from .host_text import host_lines
from .run_text import run_lines

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Resize

    from vramtop.monitor.fleet import Fleet

    from .fleet_row import FleetRow
    from .header_text import FleetFeed


class FleetDetailScreen(Screen[None]):
    """Everything that is known about one host, or about one run over its hosts.

    Args:
        row: the row that it opens from.
        fleet: the latest one.
    """

    TITLE = "Host or run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,left", "app.pop_screen", "Back", key_display="Esc"),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]
    DEFAULT_CSS = """
    FleetDetailScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    FleetDetailScreen ContentLines { height: 1fr; margin: 0 1; overflow-y: auto; }
    """

    def __init__(self, row: FleetRow, fleet: Fleet) -> None:
        super().__init__()
        self._row, self._fleet = row, fleet

    def compose(self) -> ComposeResult:
        """Its name, and the lines about it."""
        yield StaticLines(id="title")
        yield ContentLines(id="lines")
        yield KeysLine(show_command_palette=False)

    @property
    def lines(self) -> ContentLines:
        """The lines."""
        return self.query_one(ContentLines)

    def on_mount(self) -> None:
        """Show what is known already."""
        self._draw()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Show the same host or run in a new fleet."""
        del feed
        if fleet is not None:
            self._fleet = fleet
            self._draw()

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.lines.scroll_to(y=self.lines.scroll_offset.y + by, animate=False)

    def _draw(self) -> None:
        width = self.size.width - 3
        if not self.is_mounted or width <= 0:
            return
        if self._row.of_run is not None:
            key = self._row.of_run.key
            run = next((each for each in self._fleet.runs if each.key == key), None)
            title, lines = run_lines(self._fleet, run or self._row.of_run, width)
            found = run is not None
        else:
            host = next((each for each in self._fleet.hosts if each.host == self._row.host), None)
            found = host is not None
            title, lines = host_lines(self._fleet, host, width) if host else (Content(self._row.host), [])
        if not found:
            what = "run has ended, or none of its hosts shows it any more; the figures below are its last ones"
            lines = [Content.styled(f"The {what}." if lines else "The host is no longer listed.", MUTED), *lines]
        self.query_one("#title", StaticLines).show(title)
        self.lines.show_lines(lines)
