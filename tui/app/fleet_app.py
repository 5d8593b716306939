"""The app over many hosts: reads a source of fleets on a thread of its own, and passes every fleet to the screens."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from vramtop.estimator.common import VramtopError, start_thread
from vramtop.monitor.fleet import MemoryHistorySource
from vramtop.monitor.storage.settings import COLOURS, KEYS, THEME

from ..keys import FLEET_APP_KEYS
from ..screens import is_complete
from ..screens.fleet import FleetFeed, FleetScreen, ShowsFleet
from .fleet_alerts import FleetAlerts
from .kept_settings import KeepsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from textual.binding import BindingType
    from textual.screen import Screen
    from textual.theme import Theme

    from vramtop.monitor.fleet import Fleet, FleetSource
    from vramtop.monitor.storage.settings import Value

    from ..draw import ColourDepth, Readings
    from ..job import BudgetsByCard, TypedJob
    from ..screens.fleet.job_fit import BudgetsFor
    from .user_signals import Signal

_STALE_INTERVALS = 3
_CLOCK_SECONDS = 1.0
_STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Everything about the app but its source."""

    source: str
    """What is read, in a few words: ``12 hosts over ssh``."""
    interval: float = 1.0
    """Seconds between readings."""
    ascii_only: bool = False
    colours: ColourDepth = "true"
    theme: str | None = None
    """Name of the theme; None or unknown: that of ``TEXTUAL_THEME``, otherwise vramtop's dark one."""
    signal_alert: Signal = "none"
    """How the user is told of an alert that fires or clears, besides by a notice."""
    on_alert: str | None = None
    """Shell command to run for each alert that fires or clears."""
    settings: dict[str, Value] = field(default_factory=dict)
    """The settings in force by dotted name; absent: the default."""
    startup_notices: list[str] = field(default_factory=list)
    """Problems found before the app was open; they are shown once it is."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where each setting is from: a flag, a variable, the file; absent: the default."""
    settings_file: str = "config.toml"
    """Path of the settings file."""
    save_setting: Callable[[str, Value | None], None] = lambda _, __: None
    """Called with name and value of each setting that the user changes."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    budgets_for: BudgetsFor | None = None
    """Makes the budgets of a job on the fit screen; None: without corrections by measured runs."""
    job: str = ""
    """A job that the fit screen opens with, as it would be typed there."""


class FleetUpdated(Message):
    """There is a new fleet, or a reason why there is none."""

    def __init__(self, fleet: Fleet | None, failure: str | None) -> None:
        super().__init__()
        self.fleet, self.failure = fleet, failure

    def can_replace(self, message: Message) -> bool:
        """Replace an earlier fleet that is still in the queue."""
        return isinstance(message, FleetUpdated)


class FleetApp(KeepsSettings):
    """The dashboard over many hosts.

    Args:
        source: read and closed on a thread of its own.
        options: everything else.
    """

    TITLE = "vramtop"
    BINDINGS: ClassVar[list[BindingType]] = FLEET_APP_KEYS

    def __init__(self, source: FleetSource, options: FleetOptions) -> None:
        super().__init__(colours=options.colours, ascii_only=options.ascii_only)
        self._fleet_source, self._options, self._kept = source, options, options
        self.choose_theme(options.theme)
        self.choose_keys(options.settings.get(KEYS))
        self.choose_colours(options.settings.get(COLOURS))
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
        is_stale = age is not None and age > max(_STALE_INTERVALS * self._options.interval, 2 * _CLOCK_SECONDS)
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
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        for sentence in (*self._options.startup_notices, *self.weak_colours.values()):
            self.notify(sentence, severity="warning", markup=False)
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

    def _keep_theme(self, theme: Theme) -> None:
        if theme.name != self.value_of(THEME):
            self.save_setting(THEME, theme.name)

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

    def show_notice(self, sentence: str) -> None:
        """Show a warning now, or once the app is open; called from other threads."""
        if self.is_running:
            self.call_from_thread(self.notify, sentence, severity="warning", markup=False)
        else:
            self._options.startup_notices.append(sentence)

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
