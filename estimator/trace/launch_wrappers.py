"""Finds the program behind ``nohup``, ``uv run``, ``conda run``, ``srun`` and others, and what they give its rank 0."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from ..common.errors import InputError
from ..readers.program.launch import MPI_LAUNCHERS, LaunchParser
from ..readers.source.flags import parse_flags

_PROJECTS = ("uv", "poetry", "pdm", "rye")
"""Tools whose ``run`` takes the Python of the project's own environment."""
_CONDA = ("conda", "mamba", "micromamba")
_PLAIN = ("env", "nohup", "time", "timeout", "nice", "ionice", "stdbuf", "setsid", "numactl", "taskset")
"""Commands that run another one as it is."""
_ATTACHED = re.compile(r"(-[^\W\d_])(\d+)$")
_WRAPPERS = (*_PROJECTS, *_CONDA, *MPI_LAUNCHERS, *_PLAIN, "pixi", "srun")


def without_wrappers(
    command: Sequence[str], environ: Mapping[str, str], folder: str | None
) -> tuple[list[str], dict[str, str], int]:
    """Return the words from the program on, the variables that it gets, and the ranks on its machine.

    Args:
        command: a launch line.
        environ: the environment; an allocation of Slurm's counts.
        folder: that it is started in; None: the current one.

    Raises:
        InputError: the number of ranks, or the program, is not on the line.
    """
    words, given, ranks = list(command), dict[str, str](), 1
    while words:
        name = PurePath(words[0]).name
        if name in _PLAIN:
            at = _command(words)
            given.update(_assigned(word) for word in words[1:at] if _is_assignment(word))
            words = words[at:]
        elif _is_assignment(words[0]):
            given.update([_assigned(words.pop(0))])
        elif name in (*_PROJECTS, *_CONDA, "pixi") and words[1:2] == ["run"]:
            at = 2 if words[2:3] == ["-m"] else _program(words, 2)
            options, here = _options(words[2:at]), Path(folder or "").absolute()
            if name in _CONDA:
                prefix = _of_conda(options, environ, here)
            elif name == "pixi":
                of_pixi = f".pixi/envs/{options.get('environment', options.get('e', 'default'))}"
                prefix = _above(here / options.get("manifest_path", options.get("m", "")), of_pixi)
            else:
                prefix = _above(here, environ.get("UV_PROJECT_ENVIRONMENT", ".venv"))
            given.update(_activated(prefix, environ))
            words = ["python", *words[at:]] if words[at : at + 1] == ["-m"] else words[at:]
        elif name == "srun" or name in MPI_LAUNCHERS:
            at = _program(words, 1)
            before = words[1:at]
            given.update(_assigned(word) for word in before if _is_assignment(word))
            variables, ranks = (_slurm if name == "srun" else _mpi)(_options(before), {**environ, **given})
            given.update(variables)
            words = words[at:]
        else:
            break
    return words, given, ranks


def _command(words: list[str]) -> int:
    """Return where the command begins that a plain wrapper runs: a program, or another wrapper."""
    program = 1 + (LaunchParser(()).find_program_index(words[1:]) or 0)
    wrappers = (at for at in range(1, program) if PurePath(words[at]).name in _WRAPPERS)
    return next(wrappers, program)


def _is_assignment(word: str) -> bool:
    return "=" in word and word.partition("=")[0].isidentifier()


def _assigned(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def _program(words: list[str], start: int) -> int:
    """Return where the program stands in the words of a wrapper, of which ``start`` are its own."""
    if not words[start : start + 1] or not words[start].startswith("-"):
        return start
    found = LaunchParser(()).find_program_index(words[start:])
    at = start + (found or 0)
    before = words[at - 2 : at]
    if not found or not (
        before[1].startswith("-") or before[1] == "env" or _is_assignment(before[1]) or before[0].startswith("-")
    ):
        line = " ".join(words[:start])
        raise InputError(f"no Python program is found after {line} and its options: write {line} OPTIONS python SCRIPT")
    return at


def _options(words: list[str]) -> dict[str, str]:
    """Return options by name; ``-n8`` is ``-n 8``."""
    apart = [part for word in words for part in (_ATTACHED.split(word)[1:3] if _ATTACHED.match(word) else (word,))]
    return {name: str(found.value) for name, found in parse_flags(apart)[0].items()}


def _number(options: Mapping[str, str], *names: str) -> int | None:
    text = next((options[name] for name in names if name in options), "")
    return int(text) if text.isdecimal() and int(text) else None


def _slurm(options: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the variables of task 0 of ``srun`` (its manual, OUTPUT ENVIRONMENT VARIABLES), and tasks on its node."""
    nodes = _number(options, "nodes", "N") or _number(environ, "SLURM_NNODES", "SLURM_JOB_NUM_NODES") or 1
    each = _number(options, "ntasks_per_node") or _number(environ, "SLURM_NTASKS_PER_NODE")
    tasks = _number(options, "ntasks", "n") or _number({} if each else environ, "SLURM_NTASKS") or nodes * (each or 1)
    each = -(-tasks // nodes)
    return {
        **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID"), "0"),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(tasks)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(nodes)),
        "SLURM_TASKS_PER_NODE": str(each) if nodes == 1 else f"{each}(x{nodes})",
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_JOB_ID": environ.get("SLURM_JOB_ID", "1"),
        "SLURM_JOB_NODELIST": environ.get("SLURM_JOB_NODELIST", "localhost"),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }, each


def _mpi(options: Mapping[str, str], _environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the variables of rank 0 under Open MPI and MPICH, and the ranks on its machine."""
    ranks = _number(options, "np", "n", "c")
    if ranks is None:
        raise InputError("mpirun starts as many ranks as its machines have slots: write -np N")
    each = min(ranks, _number(options, "npernode", "N", "ppn", "perhost") or ranks)
    return {
        **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"), "0"),
        **dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE", "PMI_SIZE"), str(ranks)),
        **dict.fromkeys(("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"), str(each)),
        **dict.fromkeys(("PMI_RANK", "MPI_LOCALRANKID"), "0"),
    }, each


def _activated(prefix: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that activate an environment of Python, as ``uv run`` does; empty: there is none."""
    if prefix is None:
        return {}
    variable = "CONDA_PREFIX" if (prefix / "conda-meta").is_dir() else "VIRTUAL_ENV"
    return {"PATH": f"{prefix / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}", variable: str(prefix)}


def _above(folder: Path, path: str) -> Path | None:
    """Return an environment in a folder or one that it is in."""
    return next((each / path for each in (folder, *folder.parents) if (each / path / "bin").is_dir()), None)


def _of_conda(options: Mapping[str, str], environ: Mapping[str, str], folder: Path) -> Path | None:
    """Return the environment that ``conda run`` takes (conda's manual, managing environments)."""
    prefix, name = options.get("prefix", options.get("p")), options.get("name", options.get("n"))
    if prefix is not None:
        return folder / prefix
    if name is None:
        return Path(environ["CONDA_PREFIX"]) if "CONDA_PREFIX" in environ else None
    roots = [Path(environ[each]) for each in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if each in environ]
    roots += [Path(environ[each]).parent.parent for each in ("CONDA_EXE", "MAMBA_EXE") if each in environ]
    homes = [*environ.get("CONDA_ENVS_PATH", "").split(os.pathsep), *(str(each / "envs") for each in roots)]
    listed = Path(environ.get("HOME", "/"), ".conda", "environments.txt")
    known = listed.read_text(encoding="utf-8").split() if listed.is_file() else []
    found = [Path(each, name) for each in homes if each] + [Path(each) for each in known if Path(each).name == name]
    found = roots if name == "base" else found
    for each in found:
        if (each / "bin").is_dir():
            return each
    raise InputError(f"no environment {name} of conda's is found: write its folder with -p instead of -n {name}")
