"""Edits a job file: sets keys in its text, keeps comments and order, and shows the difference as a unified diff.

tomlkit is imported when something is edited, which takes 15 ms.
"""

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...common.untrusted_files import parse_toml

if TYPE_CHECKING:
    from tomlkit.container import Container
    from tomlkit.items import Item, Table


def edit_job_file(text: str, changes: Mapping[str, Any]) -> str | None:
    """Return the text with dotted keys set; None if it is not TOML, or has a value where a table is needed.

    An existing key keeps its place and its comment; a new key goes to the end of its table, and a new table to the end
    of the file.

    Args:
        text: TOML.
        changes: dotted job keys (``training.micro_batch``) and their values.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        expected = _with_changes(parse_toml(text), changes)
        document = tomlkit.parse(text)
        for dotted, value in changes.items():
            _set(document, dotted, value)
        edited = document.as_string()
        return edited if parse_toml(edited) == expected else None
    except (ValueError, TypeError, TOMLKitError):
        return None


def unified_diff(before: str, after: str, *, name: str) -> str:
    """Return the difference of two texts as ``diff -u`` writes it, with one line of context."""
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=1, lineterm="")
    return "\n".join(found)


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it on one line; None in lists and tables is left out, for TOML has none."""
    return _item(value).as_string()


def _item(value: Any) -> "Item":
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update({str(key): _item(each) for key, each in value.items() if each is not None})
        return table
    if isinstance(value, list | tuple):
        array = tomlkit.array()
        array.extend(_item(each) for each in value if each is not None)
        return array
    scalar: Item = tomlkit.item(value)
    return scalar


def _item_table(fields: Mapping[str, Any]) -> "Table":
    import tomlkit

    table = tomlkit.table()
    for key, value in fields.items():
        table.append(key, _item(value))
    return table


def _set(document: "Container", dotted: str, value: Any) -> None:
    """Set a key; tables that it needs are created.

    Raises:
        TypeError: there is a value where the key needs a table.
    """
    import tomlkit

    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value) and "." not in dotted:
        tables = tomlkit.aot()
        for each in value:
            tables.append(_item_table(each))
        document.pop(dotted, None)
        document.append(dotted, tables)
        return
    table, _, key = dotted.rpartition(".")
    inner: Any = document
    for name in filter(None, table.split(".")):
        if name not in inner:
            inner.append(name, tomlkit.table())
        inner = inner[name]
    inner[key] = _item(value)


def _with_changes(tables: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data that the edited text has to hold.

    Raises:
        TypeError: there is a value where a key needs a table.
    """
    for dotted, value in changes.items():
        table, _, key = dotted.rpartition(".")
        inner = tables
        for name in filter(None, table.split(".")):
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise TypeError(f"{name} is not a table")
        inner[key] = value
    return tables
