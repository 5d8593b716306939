"""Folders to write into: whether one may, and how much room there is."""

import os
import tempfile
from pathlib import Path

from vramtop.estimator.common.paths import is_folder


def nearest_existing_folder(path: Path) -> Path:
    """The folder itself, else the one around it that is there."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if is_folder(folder)), Path("/"))


def free_bytes(path: Path) -> int:
    """Room for this user on the disk on which the folder is, or would be; quotas are not seen.

    Raises:
        OSError: the disk does not answer.
    """
    disk = os.statvfs(nearest_existing_folder(path))
    return disk.f_bavail * disk.f_frsize


def has_no_inodes(path: Path) -> bool:
    """No further file can be made there, whatever its size. Some file systems do not count them."""
    disk = os.statvfs(nearest_existing_folder(path))
    return disk.f_files > 0 and disk.f_favail == 0


def write_error(path: Path) -> str | None:
    """Why no file can be made in the folder, or in the one around it that is there; None: one was made, and is gone."""
    blocked = next((part for part in (path, *path.parents) if os.access(part, os.F_OK) and not is_folder(part)), None)
    if blocked is not None:
        return f"{blocked} is a file"
    try:
        with tempfile.TemporaryFile(dir=nearest_existing_folder(path)):
            return None
    except OSError as error:
        return f"{nearest_existing_folder(path)}: {error.strerror}"
