"""One line of ``vramtop stream``: the reading of a host as JSON, with the version of its schema in front."""

from __future__ import annotations

import msgspec

from vramtop.estimator.common import CannotTellError, LimitError, decode_json

from .host_reading import HostReading

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
        reading = decode_json(line, HostReading)
    except LimitError as error:
        raise StreamLineError(
            f"sent a line that is not one of vramtop stream ({error}); update vramtop there and here"
        ) from None
    return reading


def _require_near_schema(line: bytes) -> None:
    try:
        head = decode_json(line, _Head)
    except LimitError:
        raise StreamLineError(
            "sent something else than the lines of vramtop stream; run ssh there by hand and look what it prints"
        ) from None
    if abs(head.schema - SCHEMA) > 1:
        version = f" {head.vramtop_version[:40]}" if head.vramtop_version else ""
        which = "here" if head.schema > SCHEMA else "there"
        raise StreamLineError(
            f"vramtop{version} there speaks schema {head.schema:d}, this one {SCHEMA}; update vramtop {which}"
        )
