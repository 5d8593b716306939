"""Keys of the settings screen."""

from textual.binding import BindingType

from ...keys import bind
from ...widgets import ROW_BINDINGS

SETTINGS_KEYS: list[BindingType] = [
    bind("app.back", "leave", "Back"),
    bind("dashboard.settings", "leave", help_text=""),
    bind("settings.edit", "edit", "Change"),
    bind("settings.type", "type", "Type"),
    bind("settings.reset", "reset", "Default"),
    bind("list.filter", "filter", "Filter", help_text="show only settings with these words"),
]
SETTING_LIST_KEYS: list[BindingType] = [*ROW_BINDINGS]
