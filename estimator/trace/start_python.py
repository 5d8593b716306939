"""Starts Python interpreters, which import nothing from the current folder, a job's folder or a stranger's.

No other module starts any but vramtop's own interpreter, to run vramtop again.

- They run in the folder ``/``, in which ``""`` and ``"."`` on a path find nothing, also in processes of their own.
- They run a file by its path, so that no Python puts the current folder on ``sys.path`` (``-c`` and ``-m`` do).
- PYTHONPATH and user packages stay, as an environment may need them (``pip install --user``, module systems of
  clusters), but for folders into which others could have put a ``json.py`` or a ``sitecustomize.py``.
"""

import glob
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from ..common.errors import CannotTellError
from ..common.paths import JOB_FOLDERS, current_folder
from ..common.process_limit import process_limit_error
from ..common.trust import Writers, writers_of_program

NEUTRAL_FOLDER = "/"
"""The current folder of the interpreters: root's."""
_RUN_AT_START = ("sitecustomize*", "usercustomize*", "*.pth")
"""Files that site.py runs."""


def start_python(
    python: Path,
    program: Path,
    *words: str,
    environ: Mapping[str, str] | None = None,
    stderr: IO[bytes],
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start an interpreter with pipes for its input and output.

    Args:
        python: the interpreter.
        program: the file to run.
        words: its arguments.
        environ: its environment; None: this process's.
        stderr: file for its messages.
        own_session: the keys of the terminal (Ctrl-C) do not reach it; it is ended by its caller.

    Raises:
        CannotTellError: it cannot be started.
    """
    try:
        return subprocess.Popen(
            [python.absolute(), program, *words],
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
    writers = writers_of_program(python)
    kept = [entry for entry in _entries(environ) if _distrust(entry, writers) is None]
    safe["PYTHONPATH"] = os.pathsep.join(kept)
    if not kept:
        del safe["PYTHONPATH"]
    for name in ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"):
        if any(_distrust(folder, writers) for folder in safe.get(name, "").split(os.pathsep) if safe.get(name)):
            del safe[name]
    base = safe.get("PYTHONUSERBASE") or (f"{safe['HOME']}/.local" if safe.get("HOME") else None)
    packages = f"{glob.escape(base or '')}/lib/python*/site-packages"  # of every Python (site.py)
    if base and any(_distrust_folder(folder, writers) for folder in (base, *glob.iglob(packages))):  # noqa: PTH207
        safe["PYTHONNOUSERSITE"] = "1"
    safe["PYTHONSAFEPATH"] = "1"  # Python 3.11 and newer: also for processes that its libraries start
    return safe


def left_out_folders(environ: Mapping[str, str], python: Path) -> list[str]:
    """Return a few words for each folder of PYTHONPATH from which an interpreter must not import: which, and why."""
    writers = writers_of_program(python)
    found = ((entry, _distrust(entry, writers)) for entry in _entries(environ))
    return [f"{entry} ({reason})" for entry, reason in found if reason and os.path.isdir(entry)]  # noqa: PTH112


def _entries(environ: Mapping[str, str]) -> Iterator[str]:
    yield from filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))


def _distrust(entry: str, writers: Writers) -> str | None:
    """Return why nothing may be imported from this folder or archive of a variable; None: it may."""
    if not Path(entry).is_absolute():
        return "relative to the current folder"
    folder = os.path.realpath(entry)
    if folder == current_folder():
        return "the current folder"
    if folder in JOB_FOLDERS:
        return "the job's folder"
    return _distrust_folder(entry, writers)


def _distrust_folder(folder: str, writers: Writers) -> str | None:
    """Return why others may decide what Python imports from a folder, or runs at its start; None: they may not."""
    if not Path(folder).is_absolute():
        return "relative to the current folder"
    files = (file for name in _RUN_AT_START for file in glob.iglob(f"{glob.escape(folder)}/{name}"))  # noqa: PTH207
    try:
        return next(filter(None, (writers.distrust(each) for each in (folder, *files))), None)
    except (OSError, ValueError):
        return "absent"
