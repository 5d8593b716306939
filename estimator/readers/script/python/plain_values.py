"""Values of a script as settings have them, and expressions as people read them."""

import ast
import itertools
from typing import Any

from .values import PLAIN, UNKNOWN, External

_MAX_ITEMS = 10_000
"""Items of a list, with those of the lists in it, that are looked at."""
_NAMESPACES_OF_WORDS = (
    *("torch", "jnp", "IntervalStrategy", "SaveStrategy", "TaskType", "ShardingStrategy", "BackwardPrefetch"),
    "DDPCommunicationHookType",
)


def short_text(node: ast.AST | None) -> str:
    """Return an expression for people, at most 40 characters of it."""
    if node is None:
        return ""
    try:
        text = ast.unparse(node)
    except (RecursionError, ValueError):
        return "..."
    return text if len(text) <= 40 else f"{text[:37]}..."


def plain(value: Any) -> Any:
    """Return a value as settings have it: plain Python data; dtypes by their name; UNKNOWN for anything else."""
    return _plain(value, [_MAX_ITEMS], 0)


def _plain(value: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, External):
        return _word(value)
    if budget[0] < 0 or depth > 6:
        return UNKNOWN
    if isinstance(value, list | tuple | set | frozenset):
        items = [_plain(item, budget, depth + 1) for item in itertools.islice(value, budget[0] + 1)]
        return UNKNOWN if any(item is UNKNOWN for item in items) else items
    if isinstance(value, dict):
        pairs = itertools.islice(value.items(), budget[0] + 1)
        found = {str(key): _plain(item, budget, depth + 1) for key, item in pairs}
        return {key: item for key, item in found.items() if item is not UNKNOWN}
    return UNKNOWN


def _word(value: External) -> Any:
    """Return the name of a dtype or of an enum's member; UNKNOWN for other names of libraries."""
    if value.owner == "OptimizerNames":
        return value.name.lower()
    return value.name if value.owner in _NAMESPACES_OF_WORDS else UNKNOWN
