"""A job file with keys set otherwise: its text, comments and order kept, and the difference as a unified diff."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from ..common.untrusted_files import parse_toml

_HEADER = re.compile(r"^\s*\[\s*([A-Za-z_][\w.]*)\s*\]\s*(#.*)?$")


def edit_job_file(text: str, changes: Mapping[str, Any]) -> str | None:
    """The text with dotted keys set; None where it is written in a way that this does not edit (inline tables).

    A key that is there is changed where it stands; one that is not is added to the end of its table, and a table that
    is not there to the end of the file.

    Args:
        text: TOML.
        changes: dotted job keys (``training.micro_batch``) and their values.
    """
    lines = text.split("\n")
    for dotted, value in changes.items():
        table, _, key = dotted.rpartition(".")
        _set(lines, table, key, toml_value(value))
    edited = "\n".join(lines)
    return edited if _reads(edited) == _expected(text, changes) else None


def unified_diff(before: str, after: str, *, name: str) -> str:
    """The difference of two texts as ``diff -u`` writes it, with one line of context."""
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=1, lineterm="")
    return "\n".join(found)


def toml_value(value: Any) -> str:
    """A value as TOML writes it on one line; None in lists and inline tables is left out, for TOML has none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(each) for each in value if each is not None) + "]"
    if isinstance(value, Mapping):
        inner = (f"{toml_value(str(key))} = {toml_value(each)}" for key, each in value.items() if each is not None)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, (int, float)):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char >= " " and char != "\x7f" else f"\\u{ord(char):04x}" for char in escaped) + '"'


def _set(lines: list[str], table: str, key: str, value: str) -> None:
    begin, end = _table(lines, table)
    if begin is None:
        while lines and not lines[-1].strip():
            lines.pop()
        lines += ["", f"[{table}]", f"{key} = {value}", ""]
        return
    named = re.compile(rf"^(\s*(?:{key}|\"{key}\"|'{key}')\s*=\s*)(.*)$")
    for at in range(begin, end):
        if match := named.match(lines[at]):
            last = _last_line(lines, at, match[2])
            rest = "" if last > at else match[2][_value_end(match[2]) :]
            lines[at : last + 1] = [f"{match[1]}{value}{rest}"]
            return
    while end > begin and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, f"{key} = {value}")


def _table(lines: list[str], table: str) -> tuple[int | None, int]:
    """The lines of a table behind its header; (None, 0) where there is none."""
    begin: int | None = None if table else 0
    for at, line in enumerate(lines):
        header = _HEADER.match(line)
        starts = header is not None or line.lstrip().startswith("[[")
        if begin is not None and starts:
            return begin, at
        if begin is None and header is not None and header[1] == table:
            begin = at + 1
    return begin, len(lines)


def _value_end(text: str) -> int:
    """Where a value of one line ends, and blanks or a comment begin."""
    end, quote = len(text), ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            end = at
            break
    return len(text[:end].rstrip())


def _last_line(lines: list[str], at: int, first: str) -> int:
    """The line on which a list ends that begins on line ``at``."""
    depth, last = first[: _value_end(first)].count("[") - first[: _value_end(first)].count("]"), at
    while depth > 0 and last + 1 < len(lines):
        last += 1
        value = lines[last][: _value_end(lines[last])]
        depth += value.count("[") - value.count("]")
    return last


def _reads(text: str) -> Any:
    try:
        return parse_toml(text)
    except ValueError:
        return None


def _expected(text: str, changes: Mapping[str, Any]) -> Any:
    data = _reads(text)
    if not isinstance(data, dict):
        return {}
    for dotted, value in changes.items():
        table, _, key = dotted.rpartition(".")
        inner = data
        for name in filter(None, table.split(".")):
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                return {}
        inner[key] = value
    return data
