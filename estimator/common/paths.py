"""Paths as people and environments give them: whatever they hold, asking about them raises nothing."""

import os
from pathlib import Path


def expand_user(text: str) -> Path:
    """The path with ``~`` written out, where it is known whose home that is (a container's user may have none)."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises where there is no home


def is_file(path: Path) -> bool:
    """Whether there is a file that can be seen from here; too long a name or a forbidden folder holds none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's raises


def is_folder(path: Path) -> bool:
    """Whether there is a folder that can be seen from here."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises
