"""Indented JSON in which a list of numbers or words stays on one line."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vramtop.estimator.common.secrets import displayed_data


def json_text(value: Any) -> str:
    """Return the value as JSON, without secrets."""
    return _indented(displayed_data(value), "")


_INDENT = "  "


def _indented(value: Any, margin: str) -> str:
    """Return the value as JSON; every line but the first begins with ``margin``."""
    deeper = margin + _INDENT
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(key)}: {_indented(part, deeper)}" for key, part in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    if isinstance(value, Sequence) and any(isinstance(part, Mapping | list | tuple) for part in value):
        lines = [f"{deeper}{_indented(part, deeper)}" for part in value]
        return "[\n" + ",\n".join(lines) + f"\n{margin}]"
    return json.dumps(value)
