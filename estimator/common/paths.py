"""Paths from people and environments: asking about them never raises, whatever they hold."""

import os
from pathlib import Path

from .errors import InputError

JOB_FOLDERS: set[str] = set()
"""Folders in which jobs were read. Whoever made a job may have put anything there: nothing is imported from them."""


def expand_user(text: str) -> Path:
    """Return the path with ``~`` expanded, if that user's home is known (a container's user may have none)."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises where there is no home


def is_file(path: Path) -> bool:
    """Return True if the path is a visible file; a name that is too long or a forbidden folder gives False."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's raises


def is_folder(path: Path) -> bool:
    """Return True if the path is a visible folder."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises


def note_job_folder(folder: Path) -> None:
    """Remember a folder in which a job was read as one from which nothing is imported."""
    JOB_FOLDERS.add(os.path.realpath(folder))


def current_folder() -> str | None:
    """Return the current folder without links; None if it was removed."""
    try:
        return os.path.realpath(os.curdir)
    except OSError:
        return None


def working_folder() -> Path:
    """Return the current folder.

    Raises:
        InputError: it was removed.
    """
    try:
        return Path.cwd()
    except OSError:
        raise InputError("the current folder no longer exists; change to one that does") from None
