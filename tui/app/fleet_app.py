"""The app over many hosts: reads a source of fleets on a thread of its own, and passes every fleet to the screens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from textual.content import Content
from textual.message import Message

from vramtop.estimator.common.errors import VramtopError, start_thread

from ..draw.palette import STATUSES
from ..keys import APP_KEYS, shown_key
from ..screens.base import STALE_INTERVALS, is_complete
from ..screens.fleet.screen import FleetFeed, FleetScreen, FleetTable, ShowsFleet
from .app import SharedApp
from .help import STATUS_HELP, HelpScreen, entry, heading, key_rows, marked, short_help

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.binding import BindingType
    from textual.screen import Screen

    from vramtop.monitor.fleet.fleet import Fleet, FleetSource

    from .app import FleetOptions

_CLOCK_SECONDS = 1.0
_STOP_SECONDS = 3.0


class FleetUpdated(Message):
    """There is a new fleet, or a reason why there is none."""

    def __init__(self, fleet: Fleet | None, failure: str | None) -> None:
        super().__init__()
        self.fleet, self.failure = fleet, failure

    def can_replace(self, message: Message) -> bool:
        """Replace an earlier fleet that is still in the queue."""
        return isinstance(message, FleetUpdated)


class FleetApp(SharedApp):
    """The dashboard over many hosts.

    Args:
        source: read and closed on a thread of its own.
        options: everything else.
    """

    TITLE = "vramtop"
    BINDINGS: ClassVar[list[BindingType]] = APP_KEYS
    _options: FleetOptions

    def __init__(self, source: FleetSource, options: FleetOptions) -> None:
        super().__init__(options)
        self._fleet_source = source
        self.fleet: Fleet | None = None
        """The latest fleet."""
        self._failure: str | None = None
        self._updated_at: float | None = None
        self._paused = False
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._read, name="fleet", daemon=True)

    @property
    def feed(self) -> FleetFeed:
        """State of the readings."""
        age = None if self._updated_at is None else self._options.clock() - self._updated_at
        is_stale = age is not None and age > max(STALE_INTERVALS * self._options.interval, 2 * _CLOCK_SECONDS)
        return FleetFeed(
            source=self._options.source,
            interval=self._options.interval,
            paused=self._paused,
            age_seconds=age if is_stale else None,
            failure=self._failure,
        )

    def get_default_screen(self) -> Screen[None]:
        """Return the dashboard over hosts."""
        return FleetScreen()

    def on_mount(self) -> None:
        """Start reading."""
        self.set_interval(_CLOCK_SECONDS, self._tick)
        start_thread(self._reader)
        self.call_after_refresh(self._show)

    def on_unmount(self) -> None:
        """Stop reading, and wait a moment for what was started to be ended."""
        self._ending.set()
        self._reader.join(_STOP_SECONDS)

    def on_fleet_updated(self, message: FleetUpdated) -> None:
        """Show a new fleet."""
        self._failure = message.failure
        if message.fleet is not None and not self._paused:
            self.fleet, self._updated_at = message.fleet, self._options.clock()
        self._show()

    def action_pause(self) -> None:
        """Pause the readings, or resume them."""
        self._paused = not self._paused
        self._show()

    def action_help(self) -> None:
        """Show what the keys, sums and rows are."""
        if not isinstance(self.screen, FleetHelpScreen):
            self.push_screen(FleetHelpScreen(self.BINDINGS))

    def _tick(self) -> None:
        self.check_size()
        self._show()

    def _show(self) -> None:
        if not self.is_running or not self.screen_stack:  # a reading may arrive while the app ends
            return
        screen = self.screen
        if is_complete(screen) and isinstance(screen, ShowsFleet):
            screen.show_fleet(self.fleet, self.feed)

    def _read(self) -> None:
        """Read until the app ends; sums are worked out here, off the UI thread."""
        try:
            while not self._ending.is_set():
                started = self._options.clock()
                try:
                    fleet = self._fleet_source.read()
                    _ = fleet.totals
                    self.post_message(FleetUpdated(fleet, None))
                except VramtopError as error:
                    self.post_message(FleetUpdated(None, error.message))
                self._ending.wait(max(0.1, self._options.interval - (self._options.clock() - started)))
        finally:
            self._fleet_source.close()


# The help of the dashboard over many hosts: keys, and how to read its sums, rows and statuses.


_SUMS = (
    ("free", "memory that new jobs can use on all live hosts, and the total of their GPUs"),
    ("committed", "memory that running jobs will still allocate, or that is reserved for other jobs"),
    ("unattr", "unattributed: memory in use by no visible process; ≥: some hosts cannot tell"),
    ("silent", "hosts without current readings; the sums leave them out"),
    ("diverging", "processes over or under their budget, growing, or out of memory"),
)
_ROWS = (
    ("▸ ▾", "a folded host, or an unfolded one with its GPUs below"),
    ("! silent", "readings have stopped; the row says for how long"),
    ("! unreachable", "the connection fails, or vramtop does not run there; vramtop keeps trying"),
    ("! no GPU", "vramtop runs there but cannot read a GPU; the row says why"),
    ("! GPU lost", "a GPU does not answer: it fell off the bus, or needs a reset"),
    ("OVER 2/8", "2 of 8 processes have the worst status"),
    ("no budget", "programs run there, but their jobs are unknown; idle: no programs run"),
)
_STATUS_HERE = {
    "incomplete": "missing job settings, so its budget is a guess: attach to it on its host",
    "ended": "no longer on its GPU",
}


class FleetHelpScreen(HelpScreen):
    """The help as one text to scroll through.

    Args:
        app_bindings: keys that work on every screen.
    """

    def __init__(self, app_bindings: Sequence[BindingType] = ()) -> None:
        super().__init__(app_bindings=app_bindings)

    def short(self) -> Content:
        """Return the keys in a few words each, and the statuses."""
        return short_help((*FleetTable.BINDINGS, *FleetScreen.BINDINGS, *self._app_bindings))

    def content(self) -> Content:
        """Return the text."""
        back = (shown_key("app.back"), "on the screen of a host: back; ↑ ↓ PgUp PgDn scroll")
        bindings = (*FleetTable.BINDINGS, *FleetScreen.BINDINGS, *self._app_bindings)
        lines = [heading("Keys"), *_aligned((*key_rows(bindings), back))]
        lines += [heading("Sums, over all live hosts"), *_aligned(_SUMS)]
        lines += [heading("Rows, worst first"), *_aligned(_ROWS)]
        lines += [heading("A run is")]
        meanings = STATUS_HELP | _STATUS_HERE
        lines += [marked(f" {mark.letter} {mark.word} ", mark, meanings[name]) for name, mark in STATUSES.items()]
        return Content("\n").join(lines)


def _aligned(rows: Iterable[tuple[str, str]]) -> list[Content]:
    rows = tuple(rows)
    width = max(len(key) for key, _ in rows)
    return [entry(f"{key:{width}}", text) for key, text in rows]
