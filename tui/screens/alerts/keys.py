"""Keys of the alerts screen."""

from textual.binding import Binding, BindingType

ALERT_KEYS: list[BindingType] = [
    Binding("escape,w", "leave", "Back", key_display="Esc"),
    Binding(
        "e", "quiet_hours", "Quiet hours",
        tooltip="set the hours in which you are not told of alerts, such as 22:00-07:00, or off; kept for later runs",
    ),
]  # fmt: skip
