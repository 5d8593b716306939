"""Translation of a tool's settings to those of transformers and accelerate; each keeps its origin."""

from collections.abc import Mapping
from typing import Any

from ...source import LayeredSettings, Setting, SettingsLayer, as_bool


class Translation:
    """One layer being translated. What is not touched keeps its name: most tools pass transformers' arguments through.

    Args:
        layer: the tool's settings.
    """

    def __init__(self, layer: SettingsLayer) -> None:
        self.trainer: dict[str, Setting] = dict(layer)
        """Settings by transformers' names."""
        self.accelerate: dict[str, Setting] = {}
        """Settings by the names of accelerate's flags."""

    def pop(self, *names: str) -> Setting | None:
        """Remove settings from the layer, and return the first of them that is there."""
        found = [setting for name in names if (setting := self.trainer.pop(name, None)) is not None]
        return found[0] if found else None

    def put(self, name: str, value: Any, source: Setting) -> None:
        """Add a value under transformers' name with the origin of another setting, unless the name is set already."""
        self.trainer.setdefault(name, source.with_value(value))

    def put_accelerate(self, name: str, value: Any, source: Setting) -> None:
        """Add a value under accelerate's name with the origin of another setting, unless the name is set already."""
        self.accelerate.setdefault(name, source.with_value(value))

    def switch(self, names: Mapping[str, tuple[str, object]]) -> None:
        """Translate switches: the tool's name to transformers' name and its value where the switch is on."""
        for old, (new, value) in names.items():
            setting = self.pop(old)
            if setting is not None and as_bool(setting):
                self.put(new, value, setting)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename settings: the tool's name to transformers' name."""
        for old, new in names.items():
            if (setting := self.pop(old)) is not None:
                self.put(new, setting.value, setting)

    def move_to_accelerate(self, names: Mapping[str, str]) -> None:
        """Move settings to accelerate's: the tool's name to the name of accelerate's flag."""
        for old, new in names.items():
            if (setting := self.pop(old)) is not None:
                self.put_accelerate(new, setting.value, setting)


def uses_deepspeed(settings: LayeredSettings) -> dict[str, Setting]:
    """Return accelerate's settings with DeepSpeed on, where the trainer's ``deepspeed`` names a configuration."""
    named = settings.find("deepspeed")
    return {} if named is None else {"use_deepspeed": Setting(value=True, origin=named.origin)}
