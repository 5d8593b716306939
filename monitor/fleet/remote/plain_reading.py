"""Makes the texts of another host's reading safe to show: no control characters, escape sequences or secrets."""

from __future__ import annotations

import msgspec

from ...host import sanitize_line
from ..host_reading import HostReading


def plain_reading(reading: HostReading) -> HostReading:
    """Return a reading whose texts are plain lines; the same object if they are already."""
    plain = _plain(msgspec.to_builtins(reading))
    return msgspec.convert(plain, HostReading)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else sanitize_line(value) or ""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
