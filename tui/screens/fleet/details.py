"""The screen of one host or one run of the fleet, which follows the readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual.content import Content
from textual.screen import Screen
from textual.worker import get_current_worker

from ...draw import EIGHTHS, MUTED, graph_levels
from ...widgets import ContentLines, KeysLine, StaticLines
from .host_text import host_lines
from .keys import DETAIL_KEYS
from .run_text import run_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from vramtop.monitor.fleet import Fleet, FleetGpu, FleetRun

    from ...draw import Readings
    from .header_text import FleetFeed


_SPAN_SECONDS = 3600.0
"""Time that the graphs of memory cover."""
_HISTORY_SECONDS = 30.0
"""Time between two readings of the history: a column of the graphs."""


@runtime_checkable
class ReadsMemoryHistory(Protocol):
    """An app whose source of fleets may know the memory of GPUs over time."""

    def read_memory_history(self, host: str, seconds: float) -> Mapping[str, Readings] | None:
        """Return it by the UUID of each GPU; None: unknown. Called on other threads than that of the UI."""


class FleetDetailScreen(Screen[None]):
    """Everything that is known about one host, or about one run over its hosts.

    Args:
        fleet: the latest one.
        host: name of the host.
        run: the run, in place of a host.
    """

    TITLE = "Host or run"
    BINDINGS: ClassVar[list[BindingType]] = DETAIL_KEYS
    DEFAULT_CSS = """
    FleetDetailScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    FleetDetailScreen ContentLines { height: 1fr; margin: 0 1; overflow-y: auto; }
    """

    def __init__(self, fleet: Fleet, *, host: str, run: FleetRun | None = None) -> None:
        super().__init__()
        self._fleet, self._host, self._run = fleet, host, run
        self._history: Mapping[str, Readings] = {}

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
        """Show what is known already, and ask for what was before."""
        self._draw()
        if self._run is None and isinstance(self.app, ReadsMemoryHistory):
            self._ask_for_history()
            self.set_interval(_HISTORY_SECONDS, self._ask_for_history)

    def _ask_for_history(self) -> None:
        self.run_worker(self._read_history, thread=True, exclusive=True)

    def _read_history(self) -> None:
        app = self.app
        if isinstance(app, ReadsMemoryHistory):
            history = app.read_memory_history(self._host, _SPAN_SECONDS)
            if history is not None and not get_current_worker().is_cancelled:
                app.call_from_thread(self._show_history, history)

    def _show_history(self, history: Mapping[str, Readings]) -> None:
        self._history = history
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

    def _graph(self, gpu: FleetGpu, width: int) -> str:
        """Return the memory of a GPU over the last hour as a line of bars; empty if it is not known."""
        history = self._history.get(gpu.uuid or "")
        if not history or not gpu.total_bytes:
            return ""
        now = self._fleet.time
        levels = graph_levels(
            history, width=width, height=1, top_bytes=gpu.total_bytes, span_seconds=_SPAN_SECONDS, now=now
        )
        return "".join(EIGHTHS[level] for level in levels)

    def _draw(self) -> None:
        width = self.size.width - 3
        if not self.is_mounted or width <= 0:
            return
        if self._run is not None:
            key = self._run.key
            run = next((each for each in self._fleet.runs if each.key == key), None)
            title, lines = run_lines(self._fleet, run or self._run, width)
            found = run is not None
        else:
            host = next((each for each in self._fleet.hosts if each.host == self._host), None)
            found = host is not None
            title, lines = host_lines(self._fleet, host, width, self._graph) if host else (Content(self._host), [])
        if not found:
            what = "run has ended, or none of its hosts shows it any more; the figures below are its last ones"
            lines = [Content.styled(f"The {what}." if lines else "The host is no longer listed.", MUTED), *lines]
        self.query_one("#title", StaticLines).show(title)
        self.lines.show_lines(lines)
