"""Settings file: where it is, its values by dotted name, the line of each, and what is wrong with them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from vramtop.estimator.common.untrusted_files import parse_toml, read_file

from .schema import TABLES, Value, find_setting, nearest_name

CONFIG_VARIABLE = "VRAMTOP_CONFIG"
"""Names the settings file; ``--config`` takes precedence and sets it, so that started processes have the same one."""
NO_FILE = os.devnull
"""Name that stands for no settings file."""


def config_file(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the settings file: the named one, else ``$XDG_CONFIG_HOME/vramtop/config.toml``.

    It is relative if no home is known.
    """
    if named := environ.get(CONFIG_VARIABLE):
        return os.path.abspath(os.path.expanduser(named))  # noqa: PTH100, PTH111 - pathlib need not be loaded here
    if sys.platform != "linux":
        from platformdirs import user_config_dir

        return f"{user_config_dir('vramtop')}/config.toml"
    base = environ.get("XDG_CONFIG_HOME", "").strip()
    return os.path.join(base or os.path.expanduser("~/.config"), "vramtop", "config.toml")  # noqa: PTH111, PTH118 - as above


class Problem(NamedTuple):
    """Problem of one setting, or of the whole file."""

    sentence: str
    """What, where, and what to do."""
    name: str = ""
    """The setting's dotted name; empty: it is about the file."""
    line: int | None = None


class FileSettings(NamedTuple):
    """The settings of a text that can be used."""

    values: Mapping[str, Value] = MappingProxyType({})
    problems: tuple[Problem, ...] = ()
    is_broken: bool = False
    """It is no valid TOML: nothing of it is used, and it cannot be changed."""


def read_toml(text: str, file: str) -> FileSettings:
    """Return the settings of a text.

    Args:
        text: of the file.
        file: its name, for sentences.
    """
    try:
        tables = parse_toml(text)
    except ValueError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else None
        where = f"{file}, line {line}" if line else file
        reason = str(error).partition(" (at ")[0]
        sentence = f"{where}: {reason[:1].lower()}{reason[1:]}; none of its settings are used until that is corrected"
        return FileSettings(problems=(Problem(sentence, line=line),), is_broken=True)
    values: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    for name, value in _leaves(tables):
        setting = find_setting(name)
        if setting is None:
            wrong.append((name, _unknown(name, value)))
            continue
        try:
            values[name] = setting.checked(value)
        except ValueError as error:
            used = f"{shown(setting.default)} is used"
            wrong.append((name, f"{name} = {shown(value)}: {error}; until then {used}"))
    lines = lines_of(text) if wrong else {}
    problems = (
        Problem(f"{file}{f', line {lines[name]}' if name in lines else ''}: {words}", name, lines.get(name))
        for name, words in wrong
    )
    return FileSettings(values, tuple(problems))


_LINE = re.compile(r"""\s*(?:\[\s*(?P<table>[^][]+?)\s*]|(?P<key>(?:[\w-]+|"[^"]*"|'[^']*'|\s*\.\s*)+?)\s*=)""")


def lines_of(text: str) -> dict[str, int]:
    """Return the line, from 1, on which each dotted name of a valid text gets its value; not those of inline tables."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.match(line)
        if match is None:
            continue
        name = re.sub(r"[\"']|\s*(?=\.)|(?<=\.)\s*", "", match["table"] or match["key"])
        if match["table"]:
            table = f"{name}."
        else:
            found.setdefault(f"{table}{name}", number)
    return found


def shown(value: object) -> str:
    """Return a value as TOML has it, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case float() if value.is_integer() and abs(value) < 1e6:
            return f"{value:g}"
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
        case Mapping():
            names = {name: name if re.fullmatch(r"[A-Za-z0-9_-]+", str(name)) else shown(name) for name in value}
            entries = ", ".join(f"{names[name]} = {shown(each)}" for name, each in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case _:
            return str(value)  # a date


def _leaves(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted name; a table that is none of vramtop's as one value."""
    for key, value in tables.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and any(f"{table}.".startswith(f"{name}.") for table in TABLES):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _unknown(name: str, value: object) -> str:
    what = "table" if isinstance(value, dict) else "setting"
    if name in TABLES:
        return f"{name} is a table: write [{name}], and its settings below"
    near = nearest_name(name)
    hint = f"did you mean {near}?" if near else "vramtop config lists all"
    return f"there is no {what} {name}; {hint}"


def read_settings_file(file: str) -> tuple[str, FileSettings]:
    """Return the text of a settings file and what it says; both are empty if there is none.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
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


def line_of(file: str, name: str) -> int | None:
    """Return the line on which a settings file says what a dotted name is; None: it does not, or cannot be read."""
    try:
        return lines_of(read_settings_file(file)[0]).get(name)
    except OSError:
        return None
