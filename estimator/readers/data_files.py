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


def read_table(path: Path) -> dict[str, Any]:
    """The mapping in a YAML, JSON or TOML file.

    Raises:
        InputError: the file cannot be read, is none of them, or holds something else.
    """
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise InputError(f"{path}: too large to be a configuration file")
        text = read_file(path).decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    data = _PARSERS.get(path.suffix, _yaml)(path, text)
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected names with values, found {type(data).__name__}")
    return {str(key): value for key, value in data.items()}


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
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        place = str(error).replace("\n", " ")
        raise InputError(f"{path}: not YAML: {place}") from None


def _toml(path: Path, text: str) -> Any:
    import msgspec  # here: its TOML reader imports tomllib

    try:
        return msgspec.toml.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None


_PARSERS = {".json": _json, ".toml": _toml}
