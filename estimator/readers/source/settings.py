"""Settings of a tool by its own names, in layers: the command line wins over files, files over defaults."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...common.records import replace
from ...job.job_file.wrong_value import format_value

_PLAIN = re.compile(r"[\w.+:-]{1,40}")
_OPEN = ("-1", "auto", "none")
_WORDS = {"True": "true", "False": "false", "None": "null"}
UNKNOWN_TABLE = "**"
"""Name that stands for arguments passed as a table (``**settings``) whose contents are unknown."""
_TRUE = {"true", "1", "yes", "y", "on", "t"}
_FALSE = {"false", "0", "no", "n", "off", "f"}
_UNSET = (None, "None", "null", "")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A value as it was written (often still a string), and where it was written."""

    value: Any
    origin: str
    written: bool = True
    """False for a default or an inference."""

    def with_value(self, value: Any) -> "Setting":
        """Return another value from the same origin."""
        return replace(self, value=value)

    @classmethod
    def default(cls, value: Any, origin: str) -> "Setting":
        """Return a value that was not written by the user: a default or an inference."""
        return cls(value=value, origin=origin, written=False)


SettingsLayer = Mapping[str, Setting]


def default_layer(values: Mapping[str, object], origin: str) -> dict[str, Setting]:
    """Return defaults by name, all from the same origin."""
    return {name: Setting.default(value, origin) for name, value in values.items()}


class LayeredSettings:
    """Layers of settings, the one that wins first.

    Names are spelled with underscores. A value that means unset (``null``, ``None``) counts as missing.
    """

    def __init__(self, *layers: SettingsLayer) -> None:
        self._layers = layers
        self._read: set[str] = set()

    def find(self, *names: str) -> Setting | None:
        """Return the setting of the first layer that has one of these names; earlier names win over later ones."""
        self._read.update(names)
        for layer in self._layers:
            for name in names:
                setting = layer.get(name)
                if setting is not None and setting.value not in _UNSET:
                    return setting
        return None

    def is_unset(self, *names: str) -> bool:
        """Return True if the first layer that has one of these names says ``None``: the default does not hold."""
        return self.find_unset(*names) is not None

    def find_unset(self, *names: str) -> Setting | None:
        """Return the setting with which the first layer that has one of these names says ``None``."""
        self._read.update(names)
        for layer in self._layers:
            given = [layer[name] for name in names if name in layer]
            if given:
                return given[0] if all(setting.value in _UNSET for setting in given) else None
        return None

    def find_true(self, *names: str) -> Setting | None:
        """Return the first of these settings whose value means true. A false one does not hide another name."""
        return next((setting for setting in map(self.find, names) if as_bool(setting)), None)

    def is_true(self, *names: str) -> bool:
        """Return True if one of these settings means true; a missing one counts as false."""
        return self.find_true(*names) is not None

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, each once."""
        return list(dict.fromkeys(name for layer in self._layers for name in layer if name.startswith(prefix)))

    def unread(self) -> Iterator[tuple[str, Setting]]:
        """Yield what was written but never looked up, once per name."""
        seen = set(self._read)
        for layer in self._layers:
            for name, setting in layer.items():
                if name not in seen and setting.written and setting.value not in _UNSET:
                    seen.add(name)
                    yield name, setting


def as_bool(setting: Setting | None) -> bool | None:
    """Return true or false as argparse, YAML and environment variables write it; None if it is neither."""
    word = str(setting.value).strip().lower() if setting else ""
    return True if word in _TRUE else False if word in _FALSE else None


def as_int(setting: Setting | None) -> int | None:
    """Return a whole number of at least 1; None if the value is anything else (``refusal`` says so).

    Any spelling that Python, YAML or pydantic may turn into that number is taken: ``4``, ``"4"``, ``4.0``, ``1e3``.
    """
    try:
        number = float(str(setting.value)) if setting and not isinstance(setting.value, bool) else 0.0
    except ValueError:
        return None
    return int(number) if 1 <= number < 2**31 and number == int(number) else None


def as_float(setting: Setting | None) -> float | None:
    """Return a number; None if the value is none."""
    try:
        return float(str(setting.value)) if setting is not None and not isinstance(setting.value, bool) else None
    except ValueError:
        return None


def is_open(setting: Setting) -> bool:
    """Return True for a value that leaves a number to the program: ``-1``, ``auto``."""
    return str(setting.value).strip().lower() in _OPEN


def refusal(setting: Setting, what: str) -> str:
    """Return a sentence about a value that makes no sense: ``--max_length is -1, which is not a valid ...``.

    Args:
        setting: the value, and where it was written.
        what: what it should have been: ``batch size``.
    """
    value = setting.value
    text = value if isinstance(value, str) and _PLAIN.fullmatch(value) else format_value(value)
    return f"{setting.origin} is {_WORDS.get(text, text)}, which is not a valid {what}"


def as_word(setting: Setting | None) -> str | None:
    """Return the value in lower case, without the prefix of torch or an enum: ``torch.bfloat16`` is ``bfloat16``."""
    return str(setting.value).strip().lower().rpartition(".")[2] if setting else None


def words_of(setting: Setting | None) -> list[str]:
    """Return names that were written as a list, perhaps as its text, or with commas or spaces between them."""
    value: Any = setting.value if setting is not None else None
    words = value if isinstance(value, list | tuple) else re.sub(r"[\[\]'\",]", " ", str(value or "")).split()
    return [word for each in words if (word := str(each).strip()) and word.lower() not in ("none", "null")]


def parse_digits(text: str) -> int | None:
    """Return a number written in at most nine plain digits, as launchers take it; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
