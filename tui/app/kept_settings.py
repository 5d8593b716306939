"""The part of an app that keeps the user's settings, and puts changed ones in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from vramtop.monitor.storage.settings import ASCII, COLOURS, KEYS, QUIET_HOURS, THEME, find_setting, mapping_of

from ..screens import AlertsApp
from .themes import ThemedApp

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.monitor.storage.settings import Value


class SettingsOptions(Protocol):
    """The options of an app that are about settings."""

    @property
    def settings(self) -> dict[str, Value]:
        """The settings in force by dotted name."""

    @property
    def origins(self) -> dict[str, str]:
        """Where each is from."""

    @property
    def settings_file(self) -> str:
        """Path of the settings file."""

    @property
    def save_setting(self) -> Callable[[str, Value | None], None]:
        """Saves one."""


class KeepsSettings(ThemedApp, AlertsApp):
    """Keeps the user's settings."""

    _kept: SettingsOptions

    @property
    def settings(self) -> Mapping[str, Value]:
        """The settings in force by dotted name, with what was changed in this run; absent: the default."""
        return self._kept.settings

    @property
    def setting_origins(self) -> dict[str, str]:
        """Where each setting is from; absent: the default."""
        return self._kept.origins

    @property
    def settings_file(self) -> str:
        """Path of the settings file."""
        return self._kept.settings_file

    def value_of(self, name: str) -> Value | None:
        """Return the value of a setting in force, if need be its default; None: it is an entry of a table."""
        setting = find_setting(name)
        return self.settings.get(name, setting.default) if setting is not None else None

    def save_setting(self, name: str, value: Value | None) -> None:
        """Keep what the user has chosen on a screen, for this run and later ones."""
        mapping, values = mapping_of(name), self._kept.settings
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
        self._kept.save_setting(name, value)

    def save_for_later(self, name: str, value: Value | None) -> None:
        """Save a setting that has another value until vramtop ends."""
        self._kept.save_setting(name, value)

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
