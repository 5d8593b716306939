"""Paths as people and environments give them: whatever they hold, asking about them raises nothing."""

import errno
import os
from pathlib import Path


def expanded(text: str) -> Path:
    """The path with ``~`` written out, where it is known whose home that is (a container's user may have none)."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises where there is no home


def is_file(path: Path) -> bool:
    """Whether there is a file that can be seen from here; too long a name or a forbidden folder holds none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's raises


def is_folder(path: Path) -> bool:
    """Whether there is a folder that can be seen from here."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises


def read_file(path: Path, limit: int | None = None) -> bytes:
    """A file's bytes; of pipes and devices, which may never end, nothing is read.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    if not path.is_dir() and path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    with path.open("rb") as file:
        return file.read() if limit is None else file.read(limit)
