"""Folders that a job writes to: whether they can be written to, and how much space is free."""

import os
import tempfile
from pathlib import Path

from vramtop.estimator.common import is_folder


def nearest_existing_folder(path: Path) -> Path:
    """Return the folder itself, else the nearest folder above it that exists."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if is_folder(folder)), Path("/"))


def free_bytes(path: Path) -> int:
    """Return the free bytes for this user on the disk of the folder, whether it exists or not; quotas are not included.

    Raises:
        OSError: the disk cannot be read.
    """
    disk = os.statvfs(nearest_existing_folder(path))
    return disk.f_bavail * disk.f_frsize


def has_no_inodes(path: Path) -> bool:
    """Return True if no more files can be created there, whatever their size. Some file systems do not count inodes."""
    disk = os.statvfs(nearest_existing_folder(path))
    return disk.f_files > 0 and disk.f_favail == 0


def write_error(path: Path) -> str | None:
    """Return why no file can be created in the folder, or in the nearest one above it; None: one can."""
    blocked = next((part for part in (path, *path.parents) if os.access(part, os.F_OK) and not is_folder(part)), None)
    if blocked is not None:
        return f"{blocked} is a file"
    try:
        with tempfile.TemporaryFile(dir=nearest_existing_folder(path)):
            return None
    except OSError as error:
        return f"{nearest_existing_folder(path)}: {error.strerror}"
