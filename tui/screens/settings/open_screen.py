"""Opens the settings screen."""

from ..base import BoardApp
from .screen import SettingsScreen


def open_settings(app: BoardApp) -> None:
    """Show the settings, unless they are shown already."""
    if not isinstance(app.screen, SettingsScreen):
        app.push_once(SettingsScreen())
