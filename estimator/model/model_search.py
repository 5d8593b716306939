"""Finds names of models by what people type of them: ``llama3 8b``."""

import difflib
import re
from collections.abc import Iterable

_PARTS = re.compile(r"[a-z]+\d*(?:\.\d+)?|\d+(?:\.\d+)?[a-z]*")
_NOT_IN_KEYS = re.compile(r"[^a-z0-9]")


def similar_names(text: str, names: Iterable[str], *, most: int) -> tuple[str, ...]:
    """Return the names that a text may mean, the likeliest first.

    Every part of the text must be in the name, in any order; if that holds for none, names that look alike are taken.

    Args:
        text: what was typed.
        names: all names.
        most: maximum number of names that are returned.
    """
    keys = {name: _key(name) for name in names}
    wanted, parts = _key(text), [_key(part) for part in _PARTS.findall(text.casefold())]
    if not parts:
        return ()
    found = [name for name, key in keys.items() if wanted in key or all(part in key for part in parts)]
    if not found:
        near = difflib.get_close_matches(wanted, list(keys.values()), n=most, cutoff=0.6)
        return tuple([name for key in near for name in keys if keys[name] == key][:most])
    return tuple(sorted(found, key=lambda name: _distance(keys[name], wanted))[:most])


def _distance(key: str, wanted: str) -> tuple[bool, bool, int, str]:
    return key != wanted, not key.startswith(wanted), len(key), key


def _key(name: str) -> str:
    """Return letters and digits only."""
    return _NOT_IN_KEYS.sub("", name.casefold())
