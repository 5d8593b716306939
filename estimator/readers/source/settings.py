"""Settings of another tool, by its own names, in layers: the command line before files, files before defaults."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TRUE = {"true", "1", "yes", "y", "on", "t"}
_FALSE = {"false", "0", "no", "n", "off", "f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value as somebody wrote it (often still a string), and where."""

    value: Any
    origin: str
    written: bool = True
    """False for a default or an inference."""


SettingsLayer = Mapping[str, Setting]


class LayeredSettings:
    """Layers of settings, the one that wins first.

    Names are spelled with underscores. A value that says nothing (``null``, ``None``) counts as not given.
    """

    def __init__(self, *layers: SettingsLayer) -> None:
        self._layers = layers
        self._asked: set[str] = set()

    def find(self, *names: str) -> Setting | None:
        """The setting of the first layer that has one of these names, earlier names first."""
        self._asked.update(names)
        for layer in self._layers:
            for name in names:
                setting = layer.get(name)
                if setting is not None and setting.value not in (None, "None", "null", ""):
                    return setting
        return None

    def is_true(self, *names: str) -> bool:
        """Whether one of these is set to something true; not given counts as false."""
        return as_bool(self.find(*names)) is True

    def unread(self) -> Iterator[tuple[str, Setting]]:
        """What was written but no reader looked at, once per name."""
        seen = set(self._asked)
        for layer in self._layers:
            for name, setting in layer.items():
                if name not in seen and setting.written:
                    seen.add(name)
                    yield name, setting


def as_bool(setting: Setting | None) -> bool | None:
    """True or false, as argparse, YAML and environment variables write it; None when it is neither."""
    word = str(setting.value).strip().lower() if setting else ""
    return True if word in _TRUE else False if word in _FALSE else None


def as_int(setting: Setting | None) -> int | None:
    """A whole number of at least 1; None when it is not."""
    try:
        number = float(str(setting.value)) if setting and not isinstance(setting.value, bool) else 0.0
    except ValueError:
        return None
    return int(number) if 1 <= number < 2**31 and number == int(number) else None


def parse_digits(text: str) -> int | None:
    """A number in plain digits, as a launcher takes one; None: it is none, or as long as none is."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def as_word(setting: Setting | None) -> str | None:
    """The value in lower case without an enum's or torch's prefix: ``torch.bfloat16`` is ``bfloat16``."""
    return str(setting.value).strip().lower().rpartition(".")[2] if setting else None
