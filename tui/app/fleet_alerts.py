"""The alerts of many hosts in the app: looks at each fleet off the UI thread, and tells the user once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .user_signals import AlertSignals

if TYPE_CHECKING:
    from vramtop.monitor.alerts import FleetWatch
    from vramtop.monitor.fleet import Fleet

    from .fleet_app import FleetApp
    from .options import FleetOptions


class FleetAlerts(AlertSignals):
    """Tells the user of alerts on all hosts.

    Args:
        app: shows the notices; its settings have the quiet hours.
        options: how they are told, and their command.
    """

    def __init__(self, app: FleetApp, options: FleetOptions) -> None:
        super().__init__(app, options.signal_alert, options.on_alert)
        self._fleet_app, self._options = app, options
        self._watch: FleetWatch | None = None

    def look_at(self, fleet: Fleet) -> None:
        """Find out what is wrong; called on the thread that reads."""
        if self._watch is None:  # only now: start-up does not import it
            from vramtop.monitor.alerts import FleetWatch
            from vramtop.monitor.alerts.chosen_alerts import chosen_alerts

            chosen = chosen_alerts(self._fleet_app.settings)
            self._watch = self._fleet_app.alert_watch = FleetWatch(self._options.interval, chosen)
        self._watch.look_at(fleet)

    def tick(self, fleet: Fleet | None) -> None:
        """Tell of alerts that fire or clear; called about once a second.

        Args:
            fleet: the latest one; None: there is none, or it is not of now.
        """
        if self._watch is not None:
            self._tell(self._watch.tick(fleet, self._options.clock(), self._quiet_hours()))
