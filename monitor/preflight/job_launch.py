"""Start of a job by its launch line: its Python interpreter, its environment, and its ranks on one machine."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.library_versions import find_interpreters
from vramtop.estimator.common.trust import find_program
from vramtop.estimator.common.untrusted_files import open_file
from vramtop.estimator.job.job import Job
from vramtop.estimator.readers.program.accelerate import yaml_layer
from vramtop.estimator.readers.program.launch import Launch
from vramtop.estimator.readers.program.world_size import read_world_size
from vramtop.estimator.readers.source.data_files import read_table
from vramtop.estimator.readers.source.settings import LayeredSettings, SettingsLayer, as_int
from vramtop.estimator.readers.tools.tool_registry import find_program_index, parse_launch, split_launch_line


class JobInterpreter(msgspec.Struct, frozen=True, kw_only=True):
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


_OWN_PYTHON_WRAPPERS = frozenset(
    (*("conda", "mamba", "micromamba", "uv", "poetry", "pixi"), *("docker", "podman", "apptainer", "singularity"))
)
"""Wrappers that run the program with a Python of their own choice."""
_PYTHON = re.compile(r"python[0-9.]*")


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


_SCRIPT = re.compile(rb"""\A\#!(?:/bin/sh\n'''exec'\s+"?|\s*)(?P<path>/[^\s"]+)(?:[ \t]+(?P<name>[^\s"$]+))?""")
"""The first lines of a console script; if the path is long, pip writes it after ``/bin/sh``."""


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
    variable = active_variable(found, environ)
    return JobInterpreter(
        path=found, origin=variable or "the Python that runs vramtop", is_certain=variable is not None
    )


def active_variable(python: Path, environ: Mapping[str, str]) -> str | None:
    """Return the variable that names the active environment with this Python; None: none does."""
    names = (name for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name))
    return next((name for name in names if python == Path(environ[name]) / "bin" / "python"), None)


def job_environment(environ: Mapping[str, str], launch: Sequence[str] | None) -> dict[str, str]:
    """Return the job's environment: ours, and the assignments before its command."""
    return {**environ, **(parse_launch(split_launch_line(launch)).assignments if launch is not None else {})}


def count_local_ranks(job: Job, launch: Sequence[str] | None, environ: Mapping[str, str], folder: Path) -> int | None:
    """Return how many of the job's ranks run on one machine; None: not stated.

    Args:
        job: the job, with all of its ranks.
        launch: its launch line; None: there is none.
        environ: environment of the job; inside a Slurm allocation it states the number of machines.
        folder: folder that relative paths in the launch line count from.
    """
    ranks = job.parallel.world_size
    if launch is not None:
        parsed = parse_launch(split_launch_line(launch))
        world_size = read_world_size(parsed, LayeredSettings(parsed.options, _accelerate_file(parsed, folder)), environ)
        if as_int(world_size.ranks) == ranks and world_size.per_node is not None:
            return world_size.per_node
    nodes = environ.get("SLURM_NNODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and ranks % int(nodes) == 0:
        return ranks // int(nodes)
    return None


def _accelerate_file(launch: Launch, folder: Path) -> SettingsLayer:
    named = launch.options.get("config_file")
    if named is None:
        return {}
    path = folder / str(named.value)
    try:
        return yaml_layer(read_table(path), source=path.name)
    except InputError:  # reported when the job is read
        return {}
