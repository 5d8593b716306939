"""Checks of the folders for checkpoints and for temporary files."""

import os
import tempfile
from pathlib import Path

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.paths import is_folder
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.formula.checkpoint_saving import checkpoint_bytes

from ..check import CheckContext, CheckResult, fails, inconclusive, passes, skips, warns


def check_output_folder(context: CheckContext) -> CheckResult:
    """The folders for checkpoints and logs can be written to, and there is enough free space for checkpoints.

    Fail if there is no space for one checkpoint; warn if there is space for fewer than are kept.
    """
    run = context.job.run
    for folder in filter(None, (run.logging_dir, run.output_dir)):
        path = context.path(folder)
        refused = write_error(path)
        if refused is not None:
            return fails(f"{path} cannot be written to: {refused}", "choose another folder, or change its permissions")
        if has_no_inodes(path):
            return fails(f"{nearest_existing_folder(path)} has no inodes left", "delete files there")
    if run.output_dir is None:
        return skips("the job does not say where it writes (run.output_dir)")
    path = context.path(run.output_dir)
    free = free_bytes(path)
    try:
        size = checkpoint_bytes(context.quick_budget())
    except VramtopError as error:
        found = f"{path}: {format_gib(free)} GiB free; the size of a checkpoint is unknown: {error.message}"
        return inconclusive(found)
    return _compare_space(path, free, size, run.save_total_limit)


def _compare_space(path: Path, free: int, size: int, limit: int | None) -> CheckResult:
    if not size:
        return passes(f"{path}: {format_gib(free)} GiB free; nothing is trained, so no checkpoints")
    found = f"{path}: {format_gib(free)} GiB free, a checkpoint takes about {format_gib(size, digits=2)}"
    if free < size:
        return fails(f"{found}: no room for one", "choose an output_dir on a larger disk, or make room")
    count = free // size
    if limit is None:
        return passes(f"{found}: room for {count:,}; none is deleted unless save_total_limit says so")
    if count < limit + 1:  # the new one is written before the oldest is deleted
        found = f"{found}: room for {count}, but {limit} and the newest are kept"
        return warns(found, "make room, or lower save_total_limit")
    return passes(f"{found}: room for the {limit} that are kept")


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


_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp", ".")  # noqa: S108 - the folders that are examined
"""Where Python looks without them (``tempfile``), in its order."""


def check_temporary_folder(context: CheckContext) -> CheckResult:
    """The folder for temporary files, where torch puts compiled kernels and DataLoader workers meet, can be written to.

    Fail if there is none; warn if it is not the one that is set.
    """
    if context.machine.is_described:
        return skips("the job is for another machine than this one")
    set_ones = ((f"{name}={folder}", folder) for name in _VARIABLES if (folder := context.environ.get(name)))
    problems: list[str] = []
    for name, folder in (*set_ones, *zip(_FOLDERS, _FOLDERS, strict=True)):
        path = context.path(folder)
        problem = _problem(path)
        if problem is not None:
            problems.append(f"{name} {problem}")
        elif problems:
            return warns(f"{'; '.join(problems)}; {path} is taken instead", "make the folder, or make room there")
        else:
            return passes(f"{path} can be written to")
    return fails(f"no folder for temporary files: {'; '.join(problems)}", "set TMPDIR to a folder with room")


def _problem(path: Path) -> str | None:
    """Return why temporary files cannot be written to a folder; None: they can."""
    if not is_folder(path):
        return "is not a folder" if os.access(path, os.F_OK) else "does not exist"
    if write_error(path) is not None:
        return "cannot be written to"
    if has_no_inodes(path):
        return "has no inodes left"
    return None if free_bytes(path) else "is full"
