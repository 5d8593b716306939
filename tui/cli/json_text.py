"""Indented JSON in which a list of numbers or words stays on one line."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INDENT = "  "


def json_text(value: Any, margin: str = "") -> str:
    """Return the value as JSON; every line but the first begins with ``margin``."""
    deeper = margin + _INDENT
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(key)}: {json_text(part, deeper)}" for key, part in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    if isinstance(value, Sequence) and any(isinstance(part, Mapping | list | tuple) for part in value):
        lines = [f"{deeper}{json_text(part, deeper)}" for part in value]
        return "[\n" + ",\n".join(lines) + f"\n{margin}]"
    return json.dumps(value)
