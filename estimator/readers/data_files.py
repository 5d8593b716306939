"""YAML, JSON and TOML files as plain data: nothing in them is imported, constructed or expanded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..paths import read_file
from .place import Place
from .settings import Setting

_LIMIT_BYTES = 4 * 2**20
_LIMIT_VALUES = 100_000
"""A file's values with its aliases followed; beyond it a few lines of YAML would keep us busy for minutes."""
_KINDS = {list: "a list", str: "plain text", int: "a number", float: "a number", bool: "true or false"}


def read_table(path: Path) -> dict[str, Any]:
    """The mapping in a YAML, JSON or TOML file.

    Raises:
        InputError: the file cannot be read, is none of them, or holds something else.
    """
    text = _text(path)
    data = _PARSERS.get(path.suffix, _yaml)(path, text) if text.strip() else None
    if data is None:
        raise InputError(f"{path}: empty, where settings are expected")
    if not isinstance(data, dict):
        raise InputError(f"{path}: {_KINDS.get(type(data), 'one value')}, where settings by name are expected")
    return {str(key): value for key, value in data.items()}


def _text(path: Path) -> str:
    try:
        data = read_file(path, _LIMIT_BYTES + 1)
        if len(data) > _LIMIT_BYTES:
            raise InputError(f"{path}: too large to be a configuration file")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None


def as_layer(table: Mapping[str, Any], *, source: str, prefix: str = "") -> dict[str, Setting]:
    """A table's values as settings; ``source`` names the file, ``prefix`` the table inside it."""
    return {
        name.replace("-", "_"): Setting(value=value, origin=f"{source}: {prefix}{name}")
        for name, value in table.items()
        if value is not None
    }


def table_of(value: Any, place: Place) -> tuple[dict[str, Any], str]:
    """A setting that holds a table: itself, as JSON text, or as the path of a file; with a name for its source.

    Raises:
        InputError: it is neither, or the file cannot be read.
    """
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}, ""
    text = str(value).strip()
    if text.startswith("{"):
        data = _json(Path("the JSON on the command line"), text)
        return (data if isinstance(data, dict) else {}), ""
    path = place.path(text)
    return read_table(path), path.name


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None


def _yaml(path: Path, text: str) -> Any:
    import yaml  # here: it takes 20 ms, and most readings need none

    try:
        data = yaml.safe_load(text)
        values = _values(data, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}" if mark is not None else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{path}: not YAML{place}: {what}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not YAML: {reason}") from None
    if values > _LIMIT_VALUES:
        raise InputError(f"{path}: its aliases expand to more than {_LIMIT_VALUES:,} values; no configuration does")
    return data


def _values(data: Any, known: dict[int, int]) -> int:
    """How many values there are with aliases followed, counted once for each object.

    Raises:
        ValueError: a value contains itself.
    """
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list | set) else ()
    if not inner:
        return 1
    if id(data) in known:
        if known[id(data)] == 0:
            raise ValueError("a value contains itself")
        return known[id(data)]
    known[id(data)] = 0  # under way
    known[id(data)] = 1 + sum(_values(value, known) for value in inner)
    return known[id(data)]


def _toml(path: Path, text: str) -> Any:
    import msgspec  # here: its TOML reader imports tomllib

    try:
        return msgspec.toml.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None


_PARSERS = {".json": _json, ".toml": _toml}
