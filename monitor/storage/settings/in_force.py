"""The settings in force: flag, else environment, else settings file, else default; with the origin of each."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from vramtop.estimator.common.trust import own_writers

from .schema import SETTINGS, find_setting
from .settings_file import NO_FILE, FileSettings, Problem, config_file, read_settings_file

DEFAULT, FILE = "default", "file"
"""Origins; the others are an environment variable, and a flag with its dashes."""


class SettingsInForce(NamedTuple):
    """What each setting is, and where that was said."""

    values: Mapping[str, Any]
    """By dotted name, of all settings, each of its setting's type."""
    origins: Mapping[str, str]
    """``default``, ``file``, the name of an environment variable, or a flag."""
    problems: tuple[Problem, ...] = ()
    """Settings that could not be used; their defaults are in force."""
    file: str = ""
    """Path of the settings file."""
    has_file: bool = False


DEFAULTS = {setting.name: setting.default for setting in SETTINGS}


def settings_in_force(environ: Mapping[str, str] = os.environ) -> SettingsInForce:
    """Return the settings without the command line's. Nothing is written, and whatever is wrong becomes a problem."""
    file = config_file(environ)
    read, has_file, distrust = _read_file(file)
    values = dict(DEFAULTS)
    origins = dict.fromkeys(values, DEFAULT)
    problems = list(read.problems)
    for name, value in read.values.items():
        setting = find_setting(name)
        if setting is not None and setting.is_program and value and distrust:
            do = "own the file and run chmod go-w on it"
            sentence = f"{file}: {name} is not used, because others may change it: {distrust}; {do}"
            problems.append(Problem(sentence, name))
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
