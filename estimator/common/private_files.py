"""Files that vramtop writes: command lines, users and jobs stand in them, so only the user may read them."""

import contextlib
import errno
import os
import stat
from io import FileIO
from itertools import takewhile
from pathlib import Path

from ..common.records import replace
from .trust import own_writers

PRIVATE = 0o600


def open_private(file: Path, *, new: bool = False) -> FileIO:
    """Open an empty file that only this user may read, also one that all could read before.

    Args:
        file: the file; a device or a pipe is opened as it is.
        new: it must not exist yet.

    Raises:
        OSError: it exists already, cannot be written, or another user's link is on the way.
    """
    follow_links(file)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if new else os.O_TRUNC)
    opened = FileIO(os.open(file, flags, PRIVATE), "wb")
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        with contextlib.suppress(OSError):  # another user's, which this one may write to
            os.fchmod(opened.fileno(), PRIVATE)
    return opened


def make_own_folder(file: Path) -> None:
    """Make the folder of one of vramtop's own files, and those above it that are missing, for this user alone.

    Root writes none where a folder or link on the way is another user's, who could lead it to any file.

    Raises:
        OSError: it cannot be made, or is not to be written to.
    """
    if os.geteuid() == 0:
        _require_own_way(file)
    folders = Path(os.path.realpath(file)).parents
    for folder in reversed([*takewhile(lambda each: not each.exists(), folders)]):
        with contextlib.suppress(FileExistsError):  # another vramtop was faster
            folder.mkdir(mode=0o700)


def _require_own_way(file: Path) -> None:
    at = _nearest(file)
    with contextlib.suppress(FileNotFoundError):  # an own link to nothing
        reason = replace(own_writers(), owners_alone=True).distrust(at)
        if reason is not None:
            reason = f"{at}{reason.removeprefix('it')}" if reason.startswith("it ") else reason
            raise PermissionError(errno.EPERM, f"{reason}; set HOME to a folder of your own")


def is_own(file: Path) -> bool:
    """Return True if nobody but this user and root decides what a file holds; a missing one: its nearest folder."""
    try:
        return file.is_absolute() and own_writers().distrust(_nearest(file)) is None
    except OSError:
        return False


def follow_links(file: Path) -> Path:
    """Return the file to which a path leads, to write it.

    Raises:
        OSError: a link on the way is another user's, who chooses what is overwritten.
    """
    with contextlib.suppress(FileNotFoundError):  # an own link to nothing, or to a pipe
        reason = replace(own_writers(), links_alone=True).distrust(_nearest(Path.cwd() / file))
        if reason is not None:
            raise PermissionError(errno.EPERM, f"{reason}; links of other users are not followed")
    return Path(os.path.realpath(file))


def _nearest(file: Path) -> Path:
    """Return the file, or the nearest folder above it that exists."""
    return next(each for each in (file, *file.parents) if os.path.lexists(each))


def write_private(file: Path, data: bytes, *, new: bool = False, mode: int = PRIVATE) -> None:
    """Write the whole file or nothing: a reader sees the old or the new one.

    Args:
        file: the file; a link is followed, and a device is written to.
        data: what it holds.
        new: it must not exist yet.
        mode: permissions of a file that the user has given others.

    Raises:
        OSError: it exists already, cannot be written, or another user's link is on the way.
    """
    target = file if new else follow_links(file)
    is_whole = not new and (target.is_file() or not target.exists())
    part = target.with_name(f".{target.name}.{os.urandom(4).hex()}") if is_whole else target
    opened = open_private(part, new=new or is_whole)
    try:
        with opened:
            left = memoryview(data)
            while left:
                left = left[opened.write(left) or 0 :]
            if is_whole:
                os.fsync(opened.fileno())
                os.fchmod(opened.fileno(), mode)
        if is_whole:
            part.replace(target)
    except OSError:
        if is_whole or new:
            part.unlink(missing_ok=True)
        raise
