"""Makes another host's reading safe to show: texts are plain lines, and numbers such as a machine can have."""

from __future__ import annotations

import msgspec

from ...host import sanitize_line
from ...snapshot import MAX_UNIX_SECONDS
from ..host_reading import HostReading
from ..stream_line import StreamLineError

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
        raise StreamLineError("sent a figure that no machine has; vramtop doctor there shows what its driver says")
    return value
