"""The text of a settings file: its values by dotted name, the line of each, and what is wrong with them."""

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from vramtop.estimator.common import check_nesting

from .schema import COLOURS, KEYS, TABLES, find_setting, mapping_of, nearest_name
from .setting import Setting, Value

_WITH_GROUPS = (f"{KEYS}.", f"{COLOURS}.")
"""Settings whose entries have dots in their names."""


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
        tables = _decoded(text)
        check_nesting(tables)
    except ValueError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else None
        where = f"{file}, line {line}" if line else file
        reason = str(error).partition(" (at ")[0]
        sentence = f"{where}: {_first_lower(reason)}; none of its settings are used until that is corrected"
        return FileSettings(problems=(Problem(sentence, line=line),), is_broken=True)
    values: dict[str, Value] = {}
    wrong: list[tuple[str, str]] = []
    for name, value in _leaves(tables):
        setting = find_setting(name) or mapping_of(name)
        if setting is None:
            wrong.append((name, _unknown(name, value)))
            continue
        try:
            if setting.name == name:
                values[name] = setting.checked(value)
            else:
                key = name[len(setting.name) + 1 :]
                entries = values.setdefault(setting.name, {})
                assert isinstance(entries, dict)  # noqa: S101 - for the type checker
                entries.update(_entry(setting, key, value))
        except ValueError as error:
            used = "it is left out" if setting.kind == "mapping" else f"{shown(setting.default)} is used"
            wrong.append((name, f"{name} = {shown(value)}: {error}; until then {used}"))
    lines = lines_of(text) if wrong else {}
    problems = (
        Problem(f"{file}{f', line {lines[name]}' if name in lines else ''}: {words}", name, lines.get(name))
        for name, words in wrong
    )
    return FileSettings(values, tuple(problems))


def lines_of(text: str) -> dict[str, int]:
    """Return the line, from 1, on which each dotted name of a valid text gets its value."""
    found: dict[str, int] = {}
    header, statement, begin = "", "", 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not statement and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begin = begin or number
        statement += line
        is_header = statement.lstrip().startswith("[")
        try:
            tables = _decoded(statement if is_header else header + statement)
        except ValueError:
            continue  # it goes on in the next line
        for name, _ in _leaves(tables):
            found.setdefault(name, begin)
        header = statement if is_header else header
        statement, begin = "", 0
    return found


def shown(value: object) -> str:
    """Return a value as TOML has it, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case int() | float():
            return f"{value:g}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e6 else repr(value)
        case list() | tuple():
            return f"[{', '.join(shown(each) for each in value)}]"
        case Mapping():
            return (
                f"{{ {', '.join(f'{shown_name(str(name))} = {shown(each)}' for name, each in value.items())} }}"
                if value
                else "{}"
            )
        case _:
            return str(value)  # a date


def _decoded(text: str) -> dict[str, Any]:
    """Return the tables of a text; tomllib's ValueError has the line at its end."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        tables: dict[str, Any] = toml.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return tables


def _leaves(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted name; a table that is none of vramtop's as one value."""
    for key, value in tables.items():
        name = f"{before}{key}"
        is_group = name.startswith(_WITH_GROUPS)  # [keys] may have fit.pin, which TOML takes for a table
        if isinstance(value, dict) and (is_group or any(f"{table}.".startswith(f"{name}.") for table in TABLES)):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _entry(setting: Setting, key: str, value: object) -> Mapping[str, str | tuple[str, ...]]:
    checked = setting.checked({key: value})
    assert isinstance(checked, Mapping)  # noqa: S101 - for the type checker
    return checked


def _unknown(name: str, value: object) -> str:
    what = "table" if isinstance(value, dict) else "setting"
    if name in TABLES:
        return f"{name} is a table: write [{name}], and its settings below"
    near = nearest_name(name)
    hint = f"did you mean {near}?" if near else "vramtop config lists all"
    return f"there is no {what} {name}; {hint}"


def shown_name(name: str) -> str:
    """Return a name as TOML has it, in quotes if need be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _first_lower(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
