"""Programs that are rehearsed instead of being read: their commands, and the jobs of these."""

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.paths import current_folder
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program

from .loaded_job import COMMAND_LINE, LoadedJob
from .read_job import JOB_SUFFIXES, PROGRAM_SUFFIXES, from_file, in_shell_script, is_shell_script


def named_program(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Return the job of a program that is to be rehearsed.

    Raises:
        InputError: none is named.
    """
    if options.job and not launch and Path(options.job).suffix == JOB_SUFFIXES[0]:
        return program_of_file(Path(options.job))
    words = launch or (["python", options.job] if str(options.job).endswith(PROGRAM_SUFFIXES) else None)
    named = [options.job] if options.job and is_shell_script(Path(options.job)) else None
    if (program := program_of_script(words or named or [])) is not None:
        return program
    if options.job and not launch and not words:
        traced = f"vramtop estimate {options.job} --method traced"
        raise InputError(f"{options.job} is not a program; {traced} traces a step of a model")
    if not words or (launch and options.job):
        raise InputError(f"no command given; write: vramtop {rehearsing(options.command)} -- python train.py ...")
    return program_job(words)


def program_of_script(words: Sequence[str]) -> LoadedJob | None:
    """Return the job of the program that a shell script starts; None: the words start none.

    Raises:
        InputError: what the script runs is open, or others decide it.
    """
    from vramtop.estimator.trace.own_program import require_own_script

    if (script := in_shell_script(words)) is None:
        return None
    for path in script.scripts:
        require_own_script(path)
    if script.unknown is not None:
        raise InputError(script.unknown)
    assigned = ["env"] if "=" in script.words[0] else []
    return program_job([*assigned, *script.words], folder=str(script.folder))


def program_of_file(path: Path) -> LoadedJob:
    """Return the job of a job file with a program.

    Raises:
        InputError: it describes a model.
    """
    loaded = from_file(path, {})
    if loaded.job.program is None:
        raise InputError(f"{path} has no [program] to rehearse; vramtop fit {path} needs no rehearsal")
    return loaded


def program_job(words: Sequence[str], *, folder: str | None = None) -> LoadedJob:
    """Return the job of a command that is to be rehearsed in a folder; None: the current one."""
    program = Program(command=shlex.join(words), folder=folder or current_folder())
    return LoadedJob(job=Job(program=program), place=COMMAND_LINE, origins={"program.command": "as you gave it"})


def if_rehearsable(find: Callable[[], LoadedJob]) -> LoadedJob | None:
    """Return the job of a program that a function finds, if it is one of Python's; None: it cannot be rehearsed."""
    from vramtop.estimator.trace.python_command import python_command

    with contextlib.suppress(InputError, CannotTellError, ValueError):
        loaded = find()
        if (program := loaded.job.program) is not None:
            python_command(program.words, os.environ, program.python, folder=program.folder)
            return loaded
    return None


def rehearsing(command: str | None) -> str:
    """Return the command with which a program is rehearsed, instead of being read."""
    if command == "run":
        return "run --fit --rehearse"
    return f"{command} --rehearse" if command in ("fit", "wait", "estimate", "preflight") else "rehearse"
