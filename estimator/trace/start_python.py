"""Starts Python interpreters, which import nothing from the current folder, a job's folder or a stranger's.

No other module starts any but vramtop's own interpreter, to run vramtop again.

- They run in the folder ``/``, in which ``""`` and ``"."`` on a path find nothing, also in processes of their own.
- They run a file by its path, so that no Python puts the current folder on ``sys.path`` (``-c`` and ``-m`` do).
- PYTHONPATH and user packages stay, as an environment may need them (``pip install --user``, module systems of
  clusters), but for folders into which others could have put a ``json.py`` or a ``sitecustomize.py``.
"""

import os
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from ..common import JOB_FOLDERS, CannotTellError, current_folder, process_limit_error

NEUTRAL_FOLDER = "/"
"""The current folder of the interpreters: root's."""
_FOLDER_VARIABLES = ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX")


def start_python(
    python: Path,
    program: Path,
    *,
    environ: Mapping[str, str] | None = None,
    stderr: IO[bytes],
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start an interpreter with pipes for its input and output.

    Args:
        python: the interpreter.
        program: the file to run.
        environ: its environment; None: this process's.
        stderr: file for its messages.
        own_session: the keys of the terminal (Ctrl-C) do not reach it; it is ended by its caller.

    Raises:
        CannotTellError: it cannot be started.
    """
    try:
        return subprocess.Popen(
            [python.absolute(), program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=safe_environment(os.environ if environ is None else environ, python.absolute()),
            cwd=NEUTRAL_FOLDER,
            bufsize=0,
            start_new_session=own_session,
        )
    except OSError as error:
        raise process_limit_error(error) or CannotTellError(f"{python} cannot be started: {error.strerror}") from None


def safe_environment(environ: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return the environment without folders from which an interpreter must not import."""
    safe = dict(environ)
    owners = _trusted_owners(python)
    kept = [entry for entry in _entries(environ) if _distrust(entry, owners) is None]
    safe["PYTHONPATH"] = os.pathsep.join(kept)
    if not kept:
        del safe["PYTHONPATH"]
    for name in _FOLDER_VARIABLES:
        if any(_distrust(folder, owners) for folder in safe.get(name, "").split(os.pathsep) if safe.get(name)):
            del safe[name]
    home = environ.get("HOME", "")
    if "PYTHONUSERBASE" not in safe and home and not _is_trusted_by_owner(f"{home}/.local", owners):
        safe["PYTHONNOUSERSITE"] = "1"
    safe["PYTHONSAFEPATH"] = "1"  # Python 3.11 and newer: also for processes that its libraries start
    return safe


def left_out_folders(environ: Mapping[str, str], python: Path) -> list[str]:
    """Return a few words for each folder of PYTHONPATH from which an interpreter must not import: which, and why."""
    owners = _trusted_owners(python)
    found = ((entry, _distrust(entry, owners)) for entry in _entries(environ))
    return [f"{entry} ({reason})" for entry, reason in found if reason and os.path.isdir(entry)]  # noqa: PTH112


def _entries(environ: Mapping[str, str]) -> Iterator[str]:
    yield from filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))


def _distrust(entry: str, owners: Collection[int]) -> str | None:
    """Return why nothing may be imported from this folder or archive; None: it may."""
    if not Path(entry).is_absolute():
        return "relative to the current folder"
    folder = os.path.realpath(entry)
    if folder == current_folder():
        return "the current folder"
    if folder in JOB_FOLDERS:
        return "the job's folder"
    try:
        status = os.stat(folder)  # noqa: PTH116 - never raises anything but OSError
    except (OSError, ValueError):
        return "absent"
    if status.st_mode & stat.S_IWOTH:
        return "anyone may write to it"
    return None if status.st_uid in owners else "another user's"


def _is_trusted_by_owner(folder: str, owners: Collection[int]) -> bool:
    """Return True if a folder belongs to a trusted user, who alone may write to it, wherever it is."""
    try:
        status = os.stat(folder)  # noqa: PTH116 - as above
    except (OSError, ValueError):
        return False
    return Path(folder).is_absolute() and not status.st_mode & stat.S_IWOTH and status.st_uid in owners


def _trusted_owners(python: Path) -> set[int]:
    """Return the users whose code may run: this one, root, and those to whom the interpreter itself belongs."""
    owners = {0, os.geteuid()}
    for path in (python, python.parent):
        try:
            owners.add(path.stat().st_uid)
        except OSError:
            continue
    return owners
