"""The settings in force as text of a table each, and as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common import displayed
from vramtop.monitor.storage.settings import FILE, TABLES, lines_of, read_settings_file, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vramtop.monitor.storage.settings import Setting, SettingsInForce, Value

    from ....draw import TextOutput
    from ...json_types import ConfigJson, PlainValue

_VALUE_COLUMN, _ORIGIN_COLUMN = 23, 49
_MAX_WIDTH = 80


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
            yield from (output.text(line) for line in _rows(setting, settings, lines))


def config_json(settings: SettingsInForce, chosen: Sequence[Setting]) -> ConfigJson:
    """Return the settings with their values, origins and defaults."""
    lines = _lines(settings)
    return {
        "schema": 1,
        "file": settings.file,
        "file_exists": settings.has_file,
        "settings": [
            {
                "name": setting.name,
                "value": json_value(settings.values[setting.name]),
                "origin": settings.origins[setting.name],
                "line": lines.get(setting.name) if settings.origins[setting.name] == FILE else None,
                "default": json_value(setting.default),
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


def json_value(value: Value) -> PlainValue:
    """Return a value as JSON has it: with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {key: list(each) if isinstance(each, tuple) else each for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def plain(value: Value | tuple[str, ...]) -> str:
    """Return a value as a script wants it: text without quotes, a list with commas."""
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, tuple) else shown(value)


def _rows(setting: Setting, settings: SettingsInForce, lines: Mapping[str, int]) -> Iterator[str]:
    value, origin = settings.values[setting.name], settings.origins[setting.name]
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _row(key, shown(entry), _origin(f"{setting.name}.{key}", origin, settings, lines))
        if not value:
            yield "  (nothing set)"
        return
    text = displayed(shown(value))
    yield from _row(setting.name.rpartition(".")[2], text, _origin(setting.name, origin, settings, lines))


def _row(key: str, value: str, origin: str) -> Iterator[str]:
    """Yield one line; a long value, or a long origin, gets a line of its own."""
    left = f"  {key:<{_VALUE_COLUMN - 3}} {value}"
    if len(left) < _ORIGIN_COLUMN and _ORIGIN_COLUMN + len(origin) <= _MAX_WIDTH:
        yield f"{left:<{_ORIGIN_COLUMN}}{origin}"
    elif len(left) + 2 + len(origin) <= _MAX_WIDTH:
        yield f"{left}  {origin}"
    else:
        yield left
        yield (
            f"{'':<{_ORIGIN_COLUMN}}{origin}"
            if _ORIGIN_COLUMN + len(origin) <= _MAX_WIDTH
            else f"{'':<{_VALUE_COLUMN}}{origin}"
        )


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
