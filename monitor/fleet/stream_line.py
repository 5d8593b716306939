"""One line of ``vramtop stream``: the reading of a host as JSON, with the version of its schema in front."""

from __future__ import annotations

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import LimitError, decode_json

from ..host.plain_text import sanitize_line
from ..snapshot.figures import MAX_UNIX_SECONDS
from .fleet import HostReading

SCHEMA = 1
"""Raised when a field changes its meaning; new fields do not raise it, as they are left out or ignored."""
_HEAD = b'{"schema":%d,'


class StreamLineError(CannotTellError):
    """A line that is not a reading, or of a schema that is too different."""

    title = "The host cannot be read"


class _Head(msgspec.Struct, frozen=True):
    schema: int
    vramtop_version: str | None = None


def stream_line(reading: HostReading) -> bytes:
    """Return the line of a reading, with its end."""
    return _HEAD % SCHEMA + msgspec.json.encode(reading)[1:] + b"\n"


def parse_stream_line(line: bytes) -> HostReading:
    """Return the reading of a line of this schema, the one before or the one after it.

    Raises:
        StreamLineError: it is none.
    """
    if not line.startswith(_HEAD % SCHEMA):
        _require_near_schema(line)
    try:
        return decode_json(line, HostReading)
    except LimitError as error:
        raise StreamLineError(
            f"sent a line that is not from vramtop stream ({error}); update vramtop on both hosts"
        ) from None


def _require_near_schema(line: bytes) -> None:
    try:
        head = decode_json(line, _Head)
    except LimitError:
        raise StreamLineError(
            "sent output that is not from vramtop stream; run ssh there by hand and see what it prints"
        ) from None
    if abs(head.schema - SCHEMA) > 1:
        version = f" {head.vramtop_version[:40]}" if head.vramtop_version else ""
        which = "here" if head.schema > SCHEMA else "there"
        raise StreamLineError(
            f"vramtop{version} there speaks schema {head.schema:d}, this one {SCHEMA}; update vramtop {which}"
        )


_MAX_CHARACTERS = 2000
_MAX_INTEGER = 1 << 60


def plain_reading(reading: HostReading) -> HostReading:
    """Return a reading with plain texts.

    Raises:
        StreamLineError: a number is negative, or larger than any size or time.
    """
    return msgspec.convert(_plain(msgspec.to_builtins(reading)), HostReading)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS] if value.isascii() and value.isprintable() else sanitize_line(value) or ""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (int, float)) and not 0 <= value <= (
        MAX_UNIX_SECONDS if isinstance(value, float) else _MAX_INTEGER
    ):
        raise StreamLineError("sent an impossible figure; run vramtop doctor there to see what its driver reports")
    return value
