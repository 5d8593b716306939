"""JSON for the probe. Runs in the user's process, where a ``json.py`` of the user's may stand for the real module."""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 50


def encode_json(value: Any, depth: int = 0) -> str:
    """Return a value as JSON in ASCII; what JSON cannot express becomes text.

    Raises:
        ValueError: it is nested too deeply, or holds itself.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if abs(value) < float("inf") else "null"
    if isinstance(value, dict):
        named = ((k, v) for k, v in value.items() if k is None or isinstance(k, (str, int, float)))
        items = (f"{_text(_key(k))}: {encode_json(v, depth + 1)}" for k, v in named)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(encode_json(each, depth + 1) for each in value) + "]"
    return _text(value if isinstance(value, str) else str(value))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else encode_json(key)


def _text(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"' + text + '"'
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    if " " <= char <= "~" and char not in '"\\':
        return char
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
