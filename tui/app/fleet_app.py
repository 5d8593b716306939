"""The app over many hosts: reads a source of fleets on a thread of its own, and passes every fleet to the screens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from vramtop.estimator.common import VramtopError, start_thread
from vramtop.monitor.fleet import MemoryHistorySource

from ..keys import FLEET_APP_KEYS
from ..screens import STALE_INTERVALS, is_complete
from ..screens.fleet import FleetFeed, FleetScreen, ShowsFleet
from .fleet_alerts import FleetAlerts
from .shared_app import SharedApp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.binding import BindingType
    from textual.screen import Screen

    from vramtop.monitor.fleet import Fleet, FleetSource

    from ..draw import Readings
    from ..job import BudgetsByCard, TypedJob
    from ..screens.fleet.job_fit import BudgetsFor
    from .options import FleetOptions

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
    BINDINGS: ClassVar[list[BindingType]] = FLEET_APP_KEYS
    _options: FleetOptions

    def __init__(self, source: FleetSource, options: FleetOptions) -> None:
        super().__init__(options)
        self._fleet_source = source
        self.fleet: Fleet | None = None
        """The latest fleet."""
        self._alerts = FleetAlerts(self, options)
        self.budgets_for: BudgetsFor = options.budgets_for or _budgets_for
        """Makes the budgets of a job on the fit screen."""
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
            alerts=self.alert_watch.states.firing_count if self.alert_watch else 0,
        )

    def get_default_screen(self) -> Screen[None]:
        """Return the dashboard over hosts."""
        return FleetScreen()

    def on_mount(self) -> None:
        """Start reading."""
        self.set_interval(_CLOCK_SECONDS, self._tick)
        start_thread(self._reader)
        self.call_after_refresh(self._show)
        if self._options.job:
            self.call_after_refresh(self._open_fit)

    def _open_fit(self) -> None:
        if isinstance(self.screen, FleetScreen):
            self.screen.open_fit(self._options.job)

    def on_unmount(self) -> None:
        """Stop reading, and wait a moment for what was started to be ended."""
        self._alerts.close()
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

    def action_alerts(self) -> None:
        """List the alerts."""
        from ..screens.alerts import AlertsScreen  # only if they are asked for

        if not isinstance(self.screen, AlertsScreen):
            self.push_screen(AlertsScreen())

    def action_settings(self) -> None:
        """List the settings."""
        from ..screens.settings import SettingsScreen  # only if they are asked for

        if not isinstance(self.screen, SettingsScreen):
            self.push_screen(SettingsScreen())

    def action_help(self) -> None:
        """Show what the keys, sums and rows are."""
        from .fleet_help import FleetHelpScreen  # with all other screens, so not at start-up

        if not isinstance(self.screen, FleetHelpScreen):
            self.push_screen(FleetHelpScreen(self.BINDINGS))

    def read_memory_history(self, host: str, seconds: float) -> Mapping[str, Readings] | None:
        """Return the memory of a host's GPUs over time; None: the source does not know it, or cannot say now.

        Called on other threads than that of the UI.
        """
        if not isinstance(self._fleet_source, MemoryHistorySource):
            return None
        try:
            return self._fleet_source.memory_history(host, seconds)
        except VramtopError:
            return None

    def _tick(self) -> None:
        self.check_size()
        feed = self.feed
        is_of_now = not feed.paused and feed.failure is None and feed.age_seconds is None
        self._alerts.tick(self.fleet if is_of_now else None)
        self._show()

    def _show(self) -> None:
        if not self.is_running or not self.screen_stack:  # a reading may arrive while the app ends
            return
        screen = self.screen
        if is_complete(screen) and isinstance(screen, ShowsFleet):
            screen.show_fleet(self.fleet, self.feed)

    def _read(self) -> None:
        """Read until the app ends; sums and runs are worked out here, off the UI thread."""
        try:
            while not self._ending.is_set():
                started = self._options.clock()
                try:
                    fleet = self._fleet_source.read()
                    _ = fleet.totals
                    self._alerts.look_at(fleet)
                    self.post_message(FleetUpdated(fleet, None))
                except VramtopError as error:
                    self.post_message(FleetUpdated(None, error.message))
                self._ending.wait(max(0.1, self._options.interval - (self._options.clock() - started)))
        finally:
            self._fleet_source.close()


def _budgets_for(typed: TypedJob, *, traced: bool) -> BudgetsByCard:
    from ..job import budgets_of  # with the estimator, so not at start-up

    return budgets_of(typed.loaded.job, gpu_type=typed.gpu_type, traced=traced)
