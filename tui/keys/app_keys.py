"""Keys that work on every screen of an app."""

from textual.binding import BindingType

from .in_force import bind

APP_KEYS: list[BindingType] = [
    bind("app.pause", "pause", "Pause", show=False),
    bind("app.help", "help", "Help"),
    bind("app.palette", "command_palette", "palette", show=False, priority=True, display="^p"),
    bind("app.suspend", "suspend_process"),
    bind("app.quit", "quit", "Quit"),
]
FLEET_APP_KEYS: list[BindingType] = [
    bind("dashboard.alerts", "alerts", "Alerts"),
    bind("dashboard.settings", "settings", "Settings", show=False),
    *APP_KEYS,
]
"""Keys of the dashboard over many hosts."""
TERMINAL_KEYS: list[BindingType] = [bind("app.repaint", "repaint")]
"""Keys of both apps that act on the terminal."""
