"""The JSON of ``vramtop config``."""

from collections.abc import Sequence
from typing import TypedDict

from .versioned import Versioned

PlainValue = bool | int | float | str | Sequence[str]


class SettingJson(TypedDict):
    """One setting."""

    name: str
    """Its name with its table: `dashboard.interval`."""
    value: PlainValue
    """Its value in force."""
    origin: str
    """Where that is from: `default`, `file`, or the flag or environment variable that sets it."""
    line: int | None
    """Line of the settings file; null: it is not from there."""
    default: PlainValue
    """Its default."""
    about: str
    """What it does, in one sentence."""
    flag: str | None
    """Flag that takes precedence over it; null: there is none."""
    environment: str | None
    """Environment variable that takes precedence over it; null: there is none."""


class ProblemJson(TypedDict):
    """Something in the settings that is wrong."""

    setting: str | None
    """Name of the setting; null: the file as a whole is wrong."""
    line: int | None
    """Line of the settings file; null: it is not from there, or unknown."""
    sentence: str
    """What is wrong, and what to do."""


class ConfigJson(Versioned):
    """The settings in force, and where each is from."""

    file: str
    """Path of the settings file."""
    file_exists: bool
    """The file is there."""
    settings: list[SettingJson]
    """The settings that were asked for."""
    problems: list[ProblemJson]
    """What is wrong in them; those settings have their defaults."""


class ConfigChangedJson(Versioned):
    """A setting that was changed in the file."""

    file: str
    """Path of the settings file."""
    setting: str
    """Name of the setting."""
    value: PlainValue | None
    """Its value in the file now; null: it was removed from it."""
