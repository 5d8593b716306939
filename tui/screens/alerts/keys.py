"""Keys of the alerts screen."""

from textual.binding import BindingType

from ...keys import bind

ALERT_KEYS: list[BindingType] = [
    bind("app.back", "leave", "Back"),
    bind("dashboard.alerts", "leave", help_text=""),
    bind("alerts.quiet_hours", "quiet_hours", "Quiet hours"),
]
