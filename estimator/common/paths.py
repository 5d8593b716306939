"""Paths from people and environments: asking about them never raises, whatever they hold."""

import os
from pathlib import Path


def expand_user(text: str) -> Path:
    """Return the path with ``~`` expanded, if that user's home is known (a container's user may have none)."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises where there is no home


def is_file(path: Path) -> bool:
    """Return True if the path is a visible file; a name that is too long or a forbidden folder gives False."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's raises


def is_folder(path: Path) -> bool:
    """Return True if the path is a visible folder."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises
