"""A tool's settings turned into those of transformers and accelerate; each keeps the place it was read from."""

from collections.abc import Mapping
from typing import Any

from ...source.settings import LayeredSettings, Setting, SettingsLayer


class Translation:
    """One layer under way: what is not touched keeps its name, as most tools pass transformers' arguments through."""

    def __init__(self, layer: SettingsLayer) -> None:
        self.layer: dict[str, Setting] = dict(layer)
        """By transformers' names."""
        self.other: dict[str, Setting] = {}
        """By accelerate's names."""

    def take(self, *names: str) -> Setting | None:
        """The first of these that is there and says something; all of them are taken out."""
        found = [setting for name in names if (setting := self.layer.pop(name, None)) is not None]
        return found[0] if found else None

    def put(self, name: str, value: Any, source: Setting, *, other: bool = False) -> None:
        """Say a value under another name, unless it is said already."""
        into = self.other if other else self.layer
        into.setdefault(name, Setting(value=value, origin=source.origin, written=source.written))

    def rename(self, names: Mapping[str, str], *, other: bool = False) -> None:
        """Old name to new name, where the old one is there."""
        for old, new in names.items():
            setting = self.take(old)
            if setting is not None:
                self.put(new, setting.value, setting, other=other)

    def drop(self, *names: str) -> None:
        """Take out what says nothing about memory."""
        self.take(*names)


def uses_deepspeed(settings: LayeredSettings) -> dict[str, Setting]:
    """For accelerate's settings: DeepSpeed is on where the trainer's ``deepspeed`` names a configuration."""
    named = settings.find("deepspeed")
    return {} if named is None else {"use_deepspeed": Setting(value=True, origin=named.origin)}
