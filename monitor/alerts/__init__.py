"""Alerts: what is wrong here or on many hosts for so long that the user should be told, and when they want to be told.

Lives here: the rules, their conditions on a board and on a fleet, the states of the alerts, and quiet hours. Nothing is
shown or started from here. Callers: ``tui/app``, the alerts screen, and ``vramtop export``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .alert_states import Alert as Alert
    from .alert_watch import AlertWatch as AlertWatch, Announcement as Announcement
    from .conditions import Feed as Feed
    from .fleet_watch import FleetWatch as FleetWatch
    from .quiet_hours import QuietHours as QuietHours, kept_quiet_hours as kept_quiet_hours
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "alert_states": "Alert",
            "alert_watch": "AlertWatch Announcement",
            "conditions": "Feed",
            "fleet_watch": "FleetWatch",
            "quiet_hours": "kept_quiet_hours QuietHours",
        },
    )
