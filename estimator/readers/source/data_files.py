"""YAML, JSON and TOML files as plain data: nothing in them is imported, constructed or expanded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ...common.untrusted_files import TooLargeError, check_nesting, parse_toml, read_file
from .evidence import FindingCollector
from .filesystem_view import FilesystemView
from .settings import Setting

NULL_IS_NO_LIMIT = ("max_length", "max_seq_length", "max_prompt_length", "max_completion_length", "max_new_tokens")
"""Settings whose null means that there is no limit, whatever the default is."""
NULL_IS_WRONG = ("per_device_train_batch_size", "micro_batch_size")
"""Settings with which no program starts while they are null: their default does not count."""
_TYPE_NAMES = {list: "a list", str: "plain text", int: "a number", float: "a number", bool: "true or false"}


def read_table(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML, JSON or TOML file.

    Raises:
        InputError: the file cannot be read, is in another format, or holds something other than a mapping.
    """
    text = _text(path)
    data = _PARSERS.get(path.suffix, _yaml)(path, text) if text.strip() else None
    if data is None:
        raise InputError(f"{path}: the file is empty; it should contain settings")
    if not isinstance(data, dict):
        raise InputError(f"{path}: {_TYPE_NAMES.get(type(data), 'one value')}; expected a table of settings")
    return {str(key): value for key, value in data.items()}


def layer_from_table(table: Mapping[str, Any], *, source: str, prefix: str = "") -> dict[str, Setting]:
    """Return a table's values as settings; ``source`` names the file, ``prefix`` the table inside it."""
    return {
        name.replace("-", "_"): Setting(value=value, origin=f"{source}: {prefix}{name}")
        for name, value in table.items()
        if value is not None or name in (*NULL_IS_NO_LIMIT, *NULL_IS_WRONG)
    }


def table_of_setting(value: Any, filesystem: FilesystemView) -> tuple[dict[str, Any], str]:
    """Return the table that a setting holds, and the name of the file it came from.

    A setting may be the table itself, JSON text, or the path of a file; the file's name is empty for the first two.

    Raises:
        InputError: it is none of them, or the file cannot be read.
    """
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}, ""
    text = str(value).strip()
    if text.startswith("{"):
        data = _json(Path("the JSON on the command line"), text)
        return (data if isinstance(data, dict) else {}), ""
    path = filesystem.resolve(text)
    return read_table(path), path.name


def layer_of_setting(
    setting: Setting | None, filesystem: FilesystemView, findings: FindingCollector, *, key: str
) -> dict[str, Setting]:
    """Return the settings in the table that a setting holds, see above; doubt a job key where it cannot be read."""
    if setting is None:
        return {}
    try:
        table, source = table_of_setting(setting.value, filesystem)
    except InputError as error:
        findings.mark_uncertain(key, f"Could not read {setting.origin}: {error.message}")
        return {}
    return layer_from_table(table, source=source or setting.origin)


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except TooLargeError as error:
        raise InputError(f"{path}: too large to be a configuration file: {error.strerror}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read as text: {reason}") from None


def _json(path: Path, text: str) -> Any:
    try:
        data = json.loads(text)
        check_nesting(data)
    except RecursionError:
        raise InputError(f"{path}: not JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    return data


def _yaml(path: Path, text: str) -> Any:
    import yaml  # here, because it takes 20 ms and most readings need none

    from .bounded_yaml import BoundedLoader

    try:
        data = yaml.load(text, BoundedLoader)  # noqa: S506 - a safe loader
        check_nesting(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{path}: not YAML{line}: {problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not YAML: {reason}") from None
    except (LookupError, AttributeError, TypeError, ArithmeticError, RecursionError):  # PyYAML does not catch these
        raise InputError(f"{path}: not YAML: a value is not of the type that its tag (such as !!int) names") from None
    return data


def _toml(path: Path, text: str) -> Any:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path}: not TOML: {error}") from None


_PARSERS = {".json": _json, ".toml": _toml}
