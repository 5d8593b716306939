"""Words of a command that starts Python: the interpreter, the program and what it is given."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common.errors import InputError
from ..common.paths import is_file
from ..common.trust import find_program, why_not_found
from ..readers.program.launch import LaunchParser
from .launch_wrappers import without_wrappers

NOTEBOOK = ".ipynb"
"""End of the name of a notebook."""
_PYTHON_FLAGS_WITH_VALUE = frozenset({"-W", "-X"})
_LAUNCHING_MODULES = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "accelerate-launch": "accelerate.commands.launch",
    "deepspeed": "deepspeed.launcher.runner",
}
_LAUNCHERS = ("horovodrun", "ray")


def python_command(
    command: Sequence[str], environ: Mapping[str, str], python: str | None = None, *, folder: str | None = None
) -> tuple[Path, list[str], dict[str, str]]:
    """Return the interpreter of a command, the words that it would be given, and the variables that the line sets.

    Args:
        command: ``[NAME=VALUE ...] python [FLAG ...] FILE|-m MODULE|-c CODE ARGUMENT...``, where the file may be a
            notebook; an executable file of Python's (a console script); or ``accelerate launch``, ``torchrun`` or
            ``deepspeed``, which start rank 0 in it. ``uv run``, ``srun`` or ``mpirun`` may stand before it.
        environ: the environment; ``PATH`` counts.
        python: the interpreter, instead of the command's.
        folder: that it is started in; None: the current one.

    Raises:
        InputError: it is none of these.
    """
    words, given, _ = without_wrappers(command, environ, folder)
    if not words:
        raise InputError("no command given; write: vramtop rehearse -- python train.py ...")
    name = Path(words[0]).name
    path = given.get("PATH", environ.get("PATH", os.defpath))
    if name in _LAUNCHING_MODULES:
        words = [_python_of(words[0], path, folder), "-m", _LAUNCHING_MODULES[name], *words[1:]]
        name = "python"
    elif name in _LAUNCHERS:
        raise InputError(f"{name} starts several processes, but a rehearsal runs only one: write python SCRIPT ARGS")
    elif name in ("jupyter", "jupyter-nbconvert", "jupyter-execute", "papermill"):
        launch = LaunchParser(()).parse(words)
        if "notebook" not in launch.launchers or launch.script is None:
            raise InputError(f"{name} names no notebook that it runs: write vramtop rehearse NOTEBOOK.ipynb")
        python, words = python or _python_of(words[0], path, folder), [launch.script, *launch.arguments]
    if name.startswith(("python", "pypy")):
        program = python or words[0]
        rest = without_flags(words[1:])
        if rest and (module := _LAUNCHING_MODULES.get(Path(rest[0]).name)):  # as the kernel starts a console script
            rest = ["-m", module, *rest[1:]]
    else:
        file = words[0] if is_file(Path(folder or "", words[0])) else str(find_program(words[0], path) or "")
        if not file:
            is_script = words[0].endswith((".py", NOTEBOOK))
            raise InputError(f"{words[0]}: {'no such file' if is_script else why_not_found(words[0], path)}")
        interpreter = "python3" if file.endswith((".py", NOTEBOOK)) else _interpreter(Path(folder or "", file))
        if interpreter is None:
            raise InputError(f"{words[0]} is not a Python program; write the command that it runs: python train.py ...")
        program = python or interpreter
        rest = [file, *words[1:]]
    if not rest:
        raise InputError("the command names no program; write: vramtop rehearse -- python train.py ...")
    if rest[0] not in ("-m", "-c") and not is_file(Path(folder or "", rest[0])):
        raise InputError(f"{rest[0]}: no such file")
    return _found(program, path, folder), rest, given


def _found(python: str, path: str, folder: str | None) -> Path:
    """Return the file of an interpreter."""
    is_in_folder = folder and not Path(python).is_absolute() and "/" in python
    found = find_program(f"{folder}/{python}" if is_in_folder else python, path)
    if found is None:
        raise InputError(f"{python}: {why_not_found(python, path)}")
    return Path(found).absolute()


def without_flags(words: list[str]) -> list[str]:
    """Return Python's words from the program on."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
        at += 2 if words[at] in _PYTHON_FLAGS_WITH_VALUE else 1
    return words[at:]


def _python_of(launcher: str, path: str, folder: str | None) -> str:
    """Return the interpreter that runs a launcher: the one that its first line names, else the one in its folder."""
    file = Path(folder or "", launcher)
    if "/" not in launcher:
        file = Path(find_program(launcher, path) or "")
    python = _interpreter(file) if is_file(file) else None
    beside = file.parent / "python"
    return python or (str(beside) if "/" in launcher and beside.is_file() else "python")


def _interpreter(file: Path) -> str | None:
    """Return the Python that a script's first line names; None: it is no script of Python's."""
    with file.open("rb") as opened:
        line = opened.readline(256)
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        del words[0]
    return words[0] if words and Path(words[0]).name.startswith("python") else None
