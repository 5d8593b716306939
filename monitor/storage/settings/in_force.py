"""The settings in force: flag, else environment, else settings file, else default; with the origin of each."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from vramtop.estimator.common import own_writers, read_file

from .old_file import read_old_file
from .places import NO_FILE, config_file, old_settings_file
from .schema import SETTINGS, find_setting
from .setting import Value
from .toml_text import FileSettings, Problem, lines_of, read_toml

DEFAULT, FILE, OLD_FILE = "default", "file", "settings.json"
"""Origins; the others are an environment variable, and a flag with its dashes."""


class SettingsInForce(NamedTuple):
    """What each setting is, and where that was said."""

    values: Mapping[str, Value]
    """By dotted name, of all settings."""
    origins: Mapping[str, str]
    """``default``, ``file``, ``settings.json``, the name of an environment variable, or a flag."""
    problems: tuple[Problem, ...] = ()
    """Settings that could not be used; their defaults are in force."""
    file: str = ""
    """Path of the settings file."""
    has_file: bool = False

    def switch(self, name: str) -> bool:
        """Return a setting that is true or false."""
        return bool(self.values[name])

    def text(self, name: str) -> str:
        """Return a setting that is a text or a choice."""
        return str(self.values[name])

    def number(self, name: str) -> float:
        """Return a setting that is a number."""
        value = self.values[name]
        assert isinstance(value, int | float)  # noqa: S101 - the schema says so
        return float(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a setting that is a list."""
        value = self.values[name]
        assert isinstance(value, tuple)  # noqa: S101 - the schema says so
        return value

    def mapping(self, name: str) -> Mapping[str, str | tuple[str, ...]]:
        """Return a setting that is a table of its own."""
        value = self.values[name]
        assert isinstance(value, Mapping)  # noqa: S101 - the schema says so
        return value

    def default(self, name: str) -> Value:
        """Return what a setting is where it is not set."""
        setting = find_setting(name)
        assert setting is not None  # noqa: S101 - names are those of the schema
        return setting.default

    def is_set(self, name: str) -> bool:
        """Return True if it is set anywhere, to whatever."""
        return self.origins[name] != DEFAULT

    def where(self, name: str) -> str:
        """Return the place that a setting is from, for sentences: file and line, or what its origin says."""
        if self.origins[name] != FILE:
            return self.origins[name]
        try:
            line = lines_of(read_settings_file(self.file)[0]).get(name)
        except OSError:
            line = None
        return f"{self.file}, line {line}" if line else self.file

    def without(self, problem: Problem) -> "SettingsInForce":
        """Return these settings with one at its default, as there is something wrong with what it was set to."""
        return self._replace(
            values={**self.values, problem.name: self.default(problem.name)},
            origins={**self.origins, problem.name: DEFAULT},
            problems=(*self.problems, problem),
        )

    def with_flag(self, name: str, value: Value, flag: str) -> "SettingsInForce":
        """Return these settings with one from the command line."""
        return self._replace(values={**self.values, name: value}, origins={**self.origins, name: flag})


def settings_in_force(environ: Mapping[str, str] = os.environ) -> SettingsInForce:
    """Return the settings without the command line's. Nothing is written, and whatever is wrong becomes a problem."""
    file = config_file(environ)
    read, has_file, distrust = _read_file(file)
    values: dict[str, Value] = {setting.name: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, DEFAULT)
    problems = list(read.problems)
    old = old_settings_file(environ)
    if old is not None:
        kept = read_old_file(old)
        problems += kept.problems
        values.update(kept.values)
        origins.update(dict.fromkeys(kept.values, OLD_FILE))
    for name, value in read.values.items():
        setting = find_setting(name)
        if setting is not None and setting.is_program and value and distrust:
            problems.append(Problem(_may_be_written(file, name, distrust), name))
            continue
        values[name], origins[name] = value, FILE
    for setting in SETTINGS:
        for variable in filter(None, (setting.variable, setting.also)):
            text = environ.get(variable)
            if text is None or (not text and setting.default not in ("", ())):
                continue
            try:
                values[setting.name], origins[setting.name] = setting.parsed(text), variable
            except ValueError as error:
                problems.append(Problem(f"{variable}={text}: {error}; until then it is ignored", setting.name))
                continue
            break
    return SettingsInForce(values, origins, tuple(problems), file, has_file)


def read_settings_file(file: str) -> tuple[str, FileSettings]:
    """Return the text of a settings file and what it says; both are empty if there is none.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    from pathlib import Path

    if file == NO_FILE:
        return "", FileSettings()
    try:
        text = read_file(Path(file)).decode("utf-8-sig")
    except FileNotFoundError:
        return "", FileSettings()
    except UnicodeDecodeError:
        sentence = f"{file}: it is not text in UTF-8; none of its settings are used until that is corrected"
        return "", FileSettings(problems=(Problem(sentence),), is_broken=True)
    return text, read_toml(text, file)


def _read_file(file: str) -> tuple[FileSettings, bool, str | None]:
    """Return what the file says, whether there is one, and why others may decide what it says, if they may."""
    if not os.path.isabs(file):  # noqa: PTH117 - of no known home: whoever made the current folder may have put it there
        return FileSettings(), False, None
    try:
        distrust = None if file == NO_FILE else own_writers().distrust(file)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return (FileSettings() if missing else _unreadable(file, error)), False, None
    try:
        read = read_settings_file(file)[1]
    except OSError as error:
        return _unreadable(file, error), True, None
    return read, file != NO_FILE, distrust


def _unreadable(file: str, error: OSError) -> FileSettings:
    reason = error.strerror or str(error)
    return FileSettings(problems=(Problem(f"{file} cannot be read: {reason}; defaults are used"),), is_broken=True)


def _may_be_written(file: str, name: str, distrust: str) -> str:
    return f"{file}: {name} is not used, as others may decide what it says: {distrust}; chmod go-w it, and own it"
