"""Opens the alerts screen."""

from ..base import BoardApp
from .screen import AlertsScreen


def open_alerts(app: BoardApp) -> None:
    """Show the alerts, unless they are shown already."""
    if not isinstance(app.screen, AlertsScreen):
        app.push_once(AlertsScreen())
