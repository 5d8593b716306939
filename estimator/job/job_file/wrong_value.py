"""Puts into words what is wrong with a value of a job file: the key, the value, and the nearest known one."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..config_fields import format_value
from .keys import choices_of, entry_struct, table_keys, table_struct

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MAX_LISTED = 20
"""Values that an error lists."""


def explain_wrong_value(message: str, data: Mapping[str, Any]) -> str:
    """Return what is wrong in the words of a user.

    Args:
        message: of msgspec: what it expected, and where.
        data: the tables of the job file.
    """
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    steps: list[str | int] = [int(at) if at else name for name, at in _STEP.findall(path[1:])]
    unknown = _UNKNOWN.search(what)
    if unknown:
        known = table_keys(str(steps[0])) if steps else table_keys(None)
        dotted = _dotted([*steps, unknown[1]])
        return f"unknown key {dotted!r}; {_nearest(unknown[1], known)}"
    value = _lookup(data, steps)
    dotted = _dotted(steps) or "the job"
    choices = _choices(steps) if what.startswith(("Invalid enum value", "Expected `str` matching regex")) else ()
    if len(choices) > _MAX_LISTED:
        return f"{dotted} = {format_value(value)} is not known; {_nearest(str(value), choices)}"
    if choices:
        return f"{dotted} = {format_value(value)} is not one of {', '.join(choices)}; {_nearest(str(value), choices)}"
    if isinstance(value, Mapping) and steps:  # found by the table's own check, which names the key
        return f"{dotted}: {what}"
    return f"{dotted} = {format_value(value)}: {what[:1].lower()}{what[1:]}"


def _dotted(steps: Sequence[str | int]) -> str:
    """Return the path of a value for people; entries of a list are counted from 1."""
    return ".".join(str(step + 1) if isinstance(step, int) else step for step in steps)


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def _choices(steps: Sequence[str | int]) -> tuple[str, ...]:
    names = [step for step in steps if isinstance(step, str)]
    struct = (table_struct(names[0]) or entry_struct(names[0])) if len(names) == 2 else None
    fields = msgspec.structs.fields(struct) if struct else ()
    return next((choices_of(f.type) for f in fields if f.encode_name == names[1]), ())


def _lookup(data: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
    return data
