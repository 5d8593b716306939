"""Replaces attributes of libraries for a while: the worker changes what it cannot be told otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Give attributes other values inside, and those that they had after it, whatever happens.

    Args:
        replacements: module or class, the attribute's name, and its value inside.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
