"""``vramtop config``: print the settings in force and where each is from, or change one."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.secrets import displayed
from vramtop.monitor.storage.settings.change import change_settings
from vramtop.monitor.storage.settings.in_force import FILE, SettingsInForce
from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, Setting, Value, find_setting, nearest_name
from vramtop.monitor.storage.settings.settings_file import lines_of, read_settings_file, shown

from ...draw.text_output import TextOutput, detect_output, printable
from ..json_text import json_text


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print or change settings; exit code 0, or 2 if something in them is wrong.

    Raises:
        InputError: there is no such setting, or the value is not allowed.
        CannotTellError: the settings file cannot be written.
    """
    settings: SettingsInForce = options.settings
    name = options.setting
    if name is not None and options.unset:
        raise InputError("--unset cannot be combined with another setting")
    if options.unset is not None:
        return _change(options, options.unset, None)
    if options.value is not None:
        return _change(options, name, options.value)
    chosen = SETTINGS if name is None else _chosen(name)
    if options.json:
        print(json_text(config_json(settings, chosen)))
    elif name is None or name in TABLES:
        print("\n".join(config_lines(settings, chosen, detect_output(ascii_only=options.ascii))))
    else:
        print(plain(settings.values[chosen[0].name]))
    sys.stdout.flush()
    about = ((each, find_setting(each.name)) for each in settings.problems)
    problems = [
        each
        for each, setting in about
        if setting in chosen or (setting is None and (not each.name or len(chosen) == len(SETTINGS)))
    ]
    for problem in problems:
        print(f"vramtop: {printable(displayed(problem.sentence))}", file=sys.stderr)
    return InputError.exit_code if problems else 0


def config_lines(settings: SettingsInForce, chosen: Sequence[Setting], output: TextOutput) -> Iterator[str]:
    """Yield the settings by table: name, value, and where it is from."""
    lines = _lines(settings)
    file = "no settings file" if settings.file == os.devnull else settings.file
    yield output.text(f"{file}{'' if settings.has_file or file != settings.file else ' (not there)'}")
    for table in TABLES:
        of_table = [setting for setting in chosen if setting.table == table]
        if not of_table:
            continue
        yield ""
        yield f"[{table}]"
        for setting in of_table:
            value = displayed(shown(settings.values[setting.name]))
            origin = _origin(setting.name, settings.origins[setting.name], settings, lines)
            yield output.text(f"  {setting.name.rpartition('.')[2]:<20} {value:<25} {origin}")


def config_json(settings: SettingsInForce, chosen: Sequence[Setting]) -> dict[str, Any]:
    """Return the settings with their values, origins and defaults."""
    lines = _lines(settings)
    return {
        "schema": 1,
        "file": settings.file,
        "file_exists": settings.has_file,
        "settings": [
            {
                "name": setting.name,
                "value": settings.values[setting.name],
                "origin": settings.origins[setting.name],
                "line": lines.get(setting.name) if settings.origins[setting.name] == FILE else None,
                "default": setting.default,
                "about": f"{setting.about}.",
                "flag": setting.flag or None,
                "environment": setting.variable or None,
            }
            for setting in chosen
        ],
        "problems": [
            {"setting": problem.name or None, "line": problem.line, "sentence": problem.sentence}
            for problem in settings.problems
        ],
    }


def plain(value: Value | tuple[str, ...]) -> str:
    """Return a value as a script wants it: text without quotes, a list with commas."""
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, tuple) else shown(value)


def _origin(name: str, origin: str, settings: SettingsInForce, lines: Mapping[str, int]) -> str:
    if origin != FILE:
        return origin
    line = lines.get(name)
    return f"{Path(settings.file).name}{f':{line}' if line else ''}"


def _lines(settings: SettingsInForce) -> Mapping[str, int]:
    """Return the lines of the file by name; nothing if it cannot be read."""
    try:
        text, read = read_settings_file(settings.file)
    except OSError:
        return {}
    return {} if read.is_broken else lines_of(text)


def _change(options: argparse.Namespace, name: str, text: str | None) -> int:
    """Set or remove one setting in the file."""
    settings: SettingsInForce = options.settings
    if name in TABLES and find_setting(name) is None:
        raise InputError(f"{name} is a table of settings, such as {_chosen(name)[0].name}")
    (setting,) = _chosen(name)
    value: Value | None = None
    if text is not None:
        try:
            value = setting.parsed(text)
        except ValueError as error:
            raise InputError(f"{name} = {text}: {error}") from None
    change_settings({name: value})
    if options.json:
        print(json_text({"schema": 1, "file": settings.file, "setting": name, "value": value}))
    else:
        print(f"{name} = {shown(value)}" if value is not None else f"{name} is not set", f"in {settings.file}")
    origin = settings.origins[setting.name]
    if origin in os.environ:
        print(f"vramtop: {origin} in the environment takes precedence over it", file=sys.stderr)
    return 0


def _chosen(name: str) -> tuple[Setting, ...]:
    """Return the settings of a table, or the one of this name.

    Raises:
        InputError: there is none.
    """
    found = find_setting(name)
    if found is not None:
        return (found,)
    of_table = tuple(setting for setting in SETTINGS if f"{setting.table}.".startswith(f"{name}."))
    if of_table:
        return of_table
    near = nearest_name(name)
    raise InputError(f"there is no setting {name}; {f'did you mean {near}?' if near else 'vramtop config lists all'}")
