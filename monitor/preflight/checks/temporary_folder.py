"""Check of the folder for temporary files."""

import os
from pathlib import Path

from vramtop.estimator.common.paths import is_folder

from ..check_result import CheckResult, fails, passes, skips, warns
from ..context import CheckContext
from .output_folder import free_bytes, has_no_inodes, write_error

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
