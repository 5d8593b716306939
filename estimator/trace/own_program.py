"""Whose program a rehearsal would run: only one about which this user, root and nobody else decide is started.

What the user types or agrees to is their will; the files that it names may be another user's.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ..common.errors import NOT_REHEARSED, InputError
from ..common.paths import is_file
from ..common.records import replace
from ..common.trust import Writers, own_writers, user_name, writers_of_program
from ..job.gpu_catalogue import Gpu
from ..job.settings import Program


class WhatRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What a rehearsal would start, for the user to agree to."""

    command: str
    folder: str
    interpreter: str
    """Without links."""
    script: str
    """The program's file, or the folder from which a module or a line of code imports."""
    owner: str
    """Owner of the script."""
    file: str | None
    """Job file with the command; None: it was typed."""


def what_runs(program: Program, environ: Mapping[str, str] | None = None) -> WhatRuns:
    """Return what a rehearsal of this program would start, in an environment; None: in this process's.

    Raises:
        InputError: it is no command of Python's, or others decide what it runs.
    """
    from ..common.secrets import displayed
    from .python_command import python_command

    interpreter, words, _ = python_command(
        program.words, os.environ if environ is None else environ, program.python, folder=program.folder
    )
    folder = str(Path(program.folder or "").resolve())
    require_own(program, interpreter, words, folder)
    script = next(_scripts(words, folder), Path(folder))
    return WhatRuns(
        command=displayed(program.command),
        folder=folder,
        interpreter=str(interpreter.resolve()),
        script=str(script),
        owner=user_name(script.stat().st_uid),
        file=program.file,
    )


def require_own(program: Program, interpreter: Path, words: Sequence[str], folder: str) -> None:
    """Refuse a program about which others decide.

    Groups of this user may write to it, as they may in the folders of a team; Python may also be that of whoever
    installed the one that runs vramtop.

    Args:
        program: as it was typed or read.
        interpreter: absolute path of its Python.
        words: what that is given.
        folder: in which it is started.

    Raises:
        InputError: a file of it, or a folder above, belongs to another user, or others may write to it.
    """
    own = _own_and_team()
    runs_vramtop = writers_of_program(Path(sys.executable))
    installers = Writers(own.users | runs_vramtop.users, own.groups | runs_vramtop.groups)
    if program.file is not None:
        _require(own, program.file, "rehearse a copy of the file")
    _require(installers, str(interpreter), "name another Python with --python")
    _require(own, folder, "copy the program into your own folder")
    for script in _scripts(words, folder):
        # a console script stands beside its Python
        _require(installers if script.parent == interpreter.parent else own, str(script), "rehearse a copy of it")


def require_own_script(path: Path) -> None:
    """Refuse a shell script about which others decide, since it decides what is started.

    Args:
        path: of the script.

    Raises:
        InputError: it or a folder above belongs to another user, or others may write to it.
    """
    _require(_own_and_team(), str(path.absolute()), "rehearse a copy of the script")


def _own_and_team() -> Writers:
    return replace(own_writers(), groups=frozenset((os.getegid(), *os.getgroups())))


def not_rehearsed(program: Program, gpu: Gpu | None, memory_bytes: int | None, changed: str | None) -> str:
    """Return that a program has no rehearsal that holds, with the command that makes the one that was looked for.

    Args:
        program: the program.
        gpu: what it would find; None: no particular one.
        memory_bytes: total memory of it; None: that of its type.
        changed: what is no longer the same as when it was rehearsed; None: it never was.
    """
    from ..common.secrets import displayed

    if gpu is None and memory_bytes is None:
        command = "vramtop rehearse"
    elif gpu is not None and memory_bytes in (None, gpu.total_bytes):
        command = f"vramtop fit --rehearse --gpu-type {shlex.quote(gpu.name)}"
    else:
        command = "vramtop fit --rehearse"
    what = f"-- {displayed(program.command)}"
    if program.file is not None:
        file, here = Path(program.file), Path.cwd()
        what = shlex.quote(str(file.relative_to(here) if file.is_relative_to(here) else file))
    since = f"{changed} since the last rehearsal; " if changed else ""
    return f"{NOT_REHEARSED}{since}{command} {what} runs the program without a GPU"


def _scripts(words: Sequence[str], folder: str) -> Iterator[Path]:
    """Yield the files that run: the program's own, its module in this folder, and those that a launcher is given."""
    if words[0] == "-m" and len(words) > 1:
        module = Path(folder, *words[1].split("."))
        yield from (each for each in (module, module.with_suffix(".py")) if each.exists())
    elif words[0] != "-c":
        yield Path(folder, words[0])
    named = (Path(folder, word) for word in words[1:] if word.endswith(".py"))
    yield from (each for each in named if is_file(each))


def _require(writers: Writers, path: str, advice: str) -> None:
    """Check that nobody else decides what stands there.

    Raises:
        InputError: somebody does.
    """
    try:
        found = writers.find_distrusted(path)
        if found is None:
            return
        place, reason = found
        owner = os.lstat(place).st_uid
    except OSError as error:
        raise InputError(f"{path} is not accessible: {error.strerror}") from None
    above = "" if place == path.rstrip("/") else f" ({path} is below it)"
    fact = f"{place} belongs to {user_name(owner)}" if owner not in writers.users else reason.format(place)
    raise InputError(f"{fact}{above}: vramtop rehearses only programs that you or root own; {advice}")
