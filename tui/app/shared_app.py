"""The part that both apps share: it keeps the settings, puts changed ones in force, and shows notices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vramtop.monitor.storage.settings import ASCII, COLOURS, KEYS, QUIET_HOURS, THEME, find_setting, mapping_of

from ..screens import AlertsApp
from .themes import ThemedApp

if TYPE_CHECKING:
    from textual.theme import Theme

    from vramtop.monitor.storage.settings import Value

    from .options import SharedOptions


class SharedApp(ThemedApp, AlertsApp):
    """An app with the user's settings.

    Args:
        options: the settings, and what to draw with.
    """

    def __init__(self, options: SharedOptions) -> None:
        self._options = options
        super().__init__(colours=options.colours, ascii_only=options.ascii_only)
        self.choose_theme(options.theme)
        self.choose_keys(options.settings.get(KEYS))
        self.choose_colours(options.settings.get(COLOURS))

    def on_mount(self) -> None:
        """Show what was found before the app was open; an app's own ``on_mount`` runs as well."""
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        for sentence in (*self._options.startup_notices, *self.weak_colours.values()):
            self.notify(sentence, severity="warning", markup=False)

    def show_notice(self, sentence: str) -> None:
        """Show a warning now, or once the app is open; called from other threads."""
        if self.is_running:
            self.call_from_thread(self.notify, sentence, severity="warning", markup=False)
        else:
            self._options.startup_notices.append(sentence)

    @property
    def settings(self) -> Mapping[str, Value]:
        """The settings in force by dotted name, with what was changed in this run; absent: the default."""
        return self._options.settings

    @property
    def setting_origins(self) -> dict[str, str]:
        """Where each setting is from; absent: the default."""
        return self._options.origins

    @property
    def settings_file(self) -> str:
        """Path of the settings file."""
        return self._options.settings_file

    def value_of(self, name: str) -> Value | None:
        """Return the value of a setting in force, if need be its default; None: it is an entry of a table."""
        setting = find_setting(name)
        return self.settings.get(name, setting.default) if setting is not None else None

    def save_setting(self, name: str, value: Value | None) -> None:
        """Keep what the user has chosen on a screen, for this run and later ones."""
        mapping, values = mapping_of(name), self._options.settings
        if mapping is not None:
            kept = values.get(mapping.name)
            entries = dict(kept) if isinstance(kept, Mapping) else {}
            entries.pop(name[len(mapping.name) + 1 :], None)
            if isinstance(value, str | tuple):
                entries[name[len(mapping.name) + 1 :]] = value
            values[mapping.name] = entries
        elif value is not None:
            values[name] = value
        else:
            values.pop(name, None)
        self._options.save_setting(name, value)

    def save_for_later(self, name: str, value: Value | None) -> None:
        """Save a setting that has another value until vramtop ends."""
        self._options.save_setting(name, value)

    def applies_at_once(self, name: str) -> bool:
        """Return True if a changed setting is in force at once."""
        return name in (THEME, ASCII, QUIET_HOURS) or name.startswith((f"{KEYS}.", f"{COLOURS}."))

    def apply_setting(self, name: str) -> None:
        """Put a changed setting in force, if that is possible while vramtop runs."""
        value = self.value_of(name)
        if name == THEME:
            self.choose_theme(str(value))
        elif name == ASCII and value in ("on", "off") and self.ascii_only != (value == "on"):
            self.action_toggle_ascii()
        elif name.startswith(f"{KEYS}."):
            self.choose_keys(self.settings.get(KEYS))
        elif name.startswith(f"{COLOURS}."):
            self.choose_colours(self.settings.get(COLOURS))
            self.draw_again()
            if sentence := self.weak_colours.get(name.rpartition(".")[2]):
                self.notify(sentence, severity="warning", markup=False)

    def _keep_theme(self, theme: Theme) -> None:
        if theme.name != self.value_of(THEME):
            self.save_setting(THEME, theme.name)
