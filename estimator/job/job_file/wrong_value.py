"""Puts into words what is wrong with a value of a job file: the key, the value, and the nearest known one."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .table_fields import choices_of, entry_struct, fields_of, table_keys, table_struct

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_EXPECTED = re.compile(
    r"Expected `(?P<types>[^`]*)`(?:, got `[^`]*`|(?P<length> of length)? (?P<sign>[<>]=?) (?P<bound>[-.\w]+))"
)
_PATTERN = re.compile(r"Expected `str` matching regex (.*)", re.DOTALL)
_PATTERNS = {
    "v?": " is not a version, such as 2.13.0",
    "A-Za-z": " is not the name of a variable, such as HF_TOKEN",
    "0-9]{1,9}:": " is not written like :4096:8",
}
"""What is expected, by a part of the pattern that says so."""
_LACKS = re.compile(r"Object missing required field `([^`]*)`")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_MAX_SHOWN_CHARACTERS = 80
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
        return f"unknown key {dotted!r}; {_nearest(unknown[1], known, before=_dotted([*steps, '']))}"
    value = _lookup(data, steps)
    dotted = _dotted(steps) or "the job"
    choices = _choices(steps) if what.startswith(("Invalid enum value", "Expected `str` matching regex")) else ()
    if len(choices) > _MAX_LISTED:
        return f"{dotted} = {format_value(value)} is not known; {_nearest(str(value), choices)}"
    if choices:
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        allowed = f"is not one of {', '.join(choices)}" if choices[1:] else f"is neither {choices[0]!r} nor a list"
        return f"{dotted} = {format_value(value)} {allowed}{meant}"
    plain = _in_plain_words(what)
    if plain == f" is not {_TYPES['object']}" and not steps[1:]:
        below = f"id = {format_value(value)}" if dotted == "model" else "its keys"
        plain += f"; write [{dotted}], and {below} in the next line"
    if plain is None and isinstance(value, Mapping) and steps:  # found by the table's own check, which names the key
        return f"{dotted}: {what}"
    return f"{dotted} = {format_value(value)}{plain or f': {what[:1].lower()}{what[1:]}'}"


def _in_plain_words(what: str) -> str | None:
    """Return what msgspec expected in the words of a user; None: not one of its usual sentences."""
    if found := _EXPECTED.fullmatch(what):
        names = [name for name in found["types"].split(" | ") if name != "null"]
        words = [_TYPES[name] for name in names if name in _TYPES and not (name == "int" and "float" in names)]
        if not words:
            return None
        unit, bound = "", ""
        if found["length"]:
            unit = " characters" if names == ["str"] else " entries"
        if found["sign"]:
            bound = f" {_BOUNDS[found['sign']]} {found['bound'].removesuffix('.0')}{unit}"
        return f" is not {' or '.join(dict.fromkeys(words))}{bound}"
    if found := _LACKS.fullmatch(what):
        return f" lacks {found[1]}"
    if found := _PATTERN.match(what):
        return next((words for begin, words in _PATTERNS.items() if begin in found[1]), " has an invalid format")
    return None


def _dotted(steps: Sequence[str | int]) -> str:
    """Return the path of a value for people; entries of a list are counted from 1."""
    return ".".join(str(step + 1) if isinstance(step, int) else step for step in steps)


def _nearest(word: str, known: Sequence[str], *, before: str = "") -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {before + near[0]!r}?" if near else f"known are {', '.join(known)}"


def _choices(steps: Sequence[str | int]) -> tuple[str, ...]:
    names = [step for step in steps if isinstance(step, str)]
    kind = (table_struct(names[0]) or entry_struct(names[0])) if len(names) == 2 else None
    field = fields_of(kind).get(names[1]) if kind else None
    return choices_of(field.type) if field else ()


def _lookup(data: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
    return data


def format_value(value: Any) -> str:
    """Return a value for an error message, cut to one line."""
    if isinstance(value, int) and value.bit_length() > 300:  # Python refuses to write very long ones
        return f"a number of about {value.bit_length() * 3 // 10:,} digits"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."
