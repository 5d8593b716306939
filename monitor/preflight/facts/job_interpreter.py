"""Finds the Python interpreter that will run a job."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from vramtop.estimator.common import find_program, open_file
from vramtop.estimator.readers.tools import find_program_index, split_launch_line
from vramtop.estimator.trace import find_interpreters

_PYTHON = re.compile(r"python[0-9.]*")
_SCRIPT = re.compile(rb"""\A\#!(?:/bin/sh\n'''exec'\s+"?|\s*)(?P<path>/[^\s"]+)(?:[ \t]+(?P<name>[^\s"$]+))?""")
"""The first lines of a console script; if the path is long, pip writes it after ``/bin/sh``."""
_OWN_PYTHON_WRAPPERS = {
    "conda",
    "mamba",
    "micromamba",
    "uv",
    "poetry",
    "pixi",
    "docker",
    "podman",
    "apptainer",
    "singularity",
}
"""Wrappers that run the program with a Python of their own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInterpreter:
    """The Python interpreter that will run the job."""

    path: Path
    origin: str
    """Where it was read: ``--python``, ``torchrun``, ``VIRTUAL_ENV``."""
    is_certain: bool = True
    """False: nothing names it; it is vramtop's own."""


def find_job_interpreter(
    python: str | None, launch: Sequence[str] | None, environ: Mapping[str, str]
) -> JobInterpreter:
    """Return the Python that ``--python`` names, else the launch line's, else the active environment's, else vramtop's.

    Args:
        python: value of ``--python``.
        launch: the launch line; None: there is none.
        environ: environment of the job.

    Raises:
        InputError: ``python`` does not exist.
    """
    if python is not None:
        return JobInterpreter(path=find_interpreters(python, environ)[0], origin="--python")
    return (_find_in_launch_line(split_launch_line(launch), environ) if launch else None) or _find_active(environ)


def _find_in_launch_line(words: Sequence[str], environ: Mapping[str, str]) -> JobInterpreter | None:
    """Return the Python of a launch line: its program, or the one in the first line of its launcher's script."""
    at = find_program_index(words)
    if at is None or not _OWN_PYTHON_WRAPPERS.isdisjoint(PurePath(word).name for word in words[:at]):
        return None
    program = find_program(words[at], environ.get("PATH"))
    if program is None:
        return None
    if _PYTHON.fullmatch(program.name):
        return JobInterpreter(path=program.absolute(), origin=words[at])
    named = _read_script_interpreter(program, environ)
    return None if named is None else JobInterpreter(path=named, origin=words[at])


def _read_script_interpreter(program: Path, environ: Mapping[str, str]) -> Path | None:
    try:
        with open_file(program) as file:
            match = _SCRIPT.match(file.read(4096))
    except OSError:
        return None
    if match is None:
        return None
    path = match["path"]
    if PurePath(os.fsdecode(path)).name == "env":
        return find_program(os.fsdecode(match["name"] or b""), environ.get("PATH"))
    named = Path(os.fsdecode(path))
    return named if _PYTHON.fullmatch(named.name) and os.access(named, os.X_OK) else None


def _find_active(environ: Mapping[str, str]) -> JobInterpreter:
    found = find_interpreters(None, environ)[0]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable) and found == Path(environ[variable]) / "bin" / "python":
            return JobInterpreter(path=found, origin=variable)
    return JobInterpreter(path=found, origin="the Python that runs vramtop", is_certain=False)
