"""Blocks and events of a snapshot as small rows: a file is mostly these, millions of dictionaries with the same keys.

The first dictionary with certain keys is read opcode by opcode. An expression is made of its keys, which matches the
opcodes of a further one as a whole; what it does not match is read opcode by opcode too.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

_COLUMNS = {
    "state": "kind",
    "action": "kind",
    "address": "address",
    "addr": "address",
    "device_free": "address",
    "size": "size",
    "frames": "frames",
}
_MAX_KEYS = 24
GET = rb"(?:j....|h.)"
"""LONG_BINGET, BINGET."""
_GETS = rb"(?:" + 8 * rb"j...." + rb"){0,16}" + GET + rb"{0,512}"
"""Eight at once, which takes half the time; bounded, as what does not match is tried with each number of eights."""
_SIZE = rb"(?:K.|M..|J...[\0-\x7f]|\x8a(?:\x05....|\x06.....|\x07......|\x08.......)[\0-\x7f])"
"""Integers from 0: BININT1, BININT2, BININT, LONG1."""
_NUMBER = rb"(?:K.|M..|J....|\x8a(?:\x05.....|\x06......|\x07.......|\x08........))"
_TEXT = rb"\x8c(?:" + b"|".join(re.escape(bytes([length])) + length * b"." for length in range(65)) + rb")"
_SPELLED = rb"(?:" + _TEXT + rb"|" + 2 * _NUMBER + rb"\x86)"
"""A short text, or a pair of numbers."""
_OTHER = rb"(?:" + GET + rb"|" + _NUMBER + rb"|[N\x88\x89]|(?P<other%d>" + _SPELLED + rb")\x94|" + _SPELLED + rb")"
_FRAMES = rb"(?:(?P<known>" + GET + rb")|\](?P<listed>\x94?)(?:\((?P<run>" + _GETS + rb")e|(?P<one>" + GET + rb")a)?)"


class Entry(NamedTuple):
    """A block of memory, or an event of the history."""

    kind: Any
    """State of the block, or what happened; None: neither is known."""
    address: int | None
    """Its address; of a failure the free memory."""
    size: int | None
    frames: Any
    """List or tuple of dictionaries; None: not recorded."""


class Shape(NamedTuple):
    """Opcodes of the entries with certain keys."""

    expression: re.Pattern[bytes]
    groups: tuple[str, ...]
    """The last ones: values that are spelled out and may be named again."""


def count_of(value: Any) -> int | None:
    """Return a size, address or index; None for what is none."""
    return value if type(value) is int and 0 <= value < 2**64 else None


def entry_of(value: Any) -> Entry | None:
    """Return the entry that a dictionary is; None: it is no dictionary."""
    if type(value) is Entry:
        return value
    if not isinstance(value, dict):
        return None
    get, size = value.get, value.get("size")
    return Entry(
        get("state", get("action")),
        count_of(get("address", get("device_free", get("addr")))),
        (count_of(size) or 0) if type(size) is int else None,
        get("frames") if "frames" in value else _first_frames(get("history")),
    )


def shape_of(keys: Sequence[Any], memo: list[Any]) -> Shape | None:
    """Return the expression for further dictionaries with these keys; None: they are no entries, or not as torch's.

    Args:
        keys: with frames as the last one, if there are some.
        memo: what the pickle names by its number, the keys too.
    """
    columns = [_COLUMNS.get(key) for key in keys]
    frames = columns.pop() if columns[-1] == "frames" else None
    if len(keys) > _MAX_KEYS or sorted(filter(None, columns)) != ["address", "kind", "size"]:
        return None
    parts = [rb"\}(?P<own>\x94?)\("]
    for key, column in zip(keys, [*columns, frames] if frames else columns, strict=True):
        if key not in memo:
            return None
        parts.append(re.escape(_get(memo.index(key))))
        if column == "frames":
            parts.append(_FRAMES)
        elif column is not None:
            parts.append(b"(?P<%b>%b)" % (column.encode(), GET if column == "kind" else _SIZE))
        else:
            parts.append(_OTHER.replace(b"%d", b"%d" % len(parts)))
    if not frames:
        parts.append(_FRAMES + b"{0}")
    expression = re.compile(b"".join(parts) + b"u", re.DOTALL)
    fixed = ("own", "kind", "address", "size", "known", "listed", "run", "one")
    others = [name for name in expression.groupindex if name.startswith("other")]
    return Shape(expression, (*fixed, *others))


def _get(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def _first_frames(history: Any) -> Any:
    first = history[0] if isinstance(history, list) and history else None
    return first.get("frames") if isinstance(first, dict) else None
