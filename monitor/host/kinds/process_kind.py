"""Tells what a process is from its command line and its type in NVML's lists: nothing is read for it.

The tables of programs are searched once per command line; the rows of later boards find the answer by it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from .desktop_programs import DESKTOP
from .helper_programs import HELPERS, NOTEBOOKS, OTHERS, TRAINING
from .known_program import KnownProgram
from .program_index import CommandLine, ProgramIndex
from .server_programs import SERVERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...snapshot import GpuProcess, ProcessType
    from .known_program import ProcessKind

PROGRAMS = (*SERVERS, *NOTEBOOKS, *HELPERS, *TRAINING, *DESKTOP, *OTHERS)
"""Every known program; the first that matches counts."""
MAX_REMEMBERED = 4096
_INDEX = ProgramIndex(PROGRAMS)
_SERVER_TITLES = tuple(title for server in SERVERS for title in server.titles)
_SERVING_NAMES = (" Serve", " Serving", " UI", "webui")
"""Ends of names that say already that the program serves."""
_PYTHON_PROGRAM = KnownProgram(kind="training", name=None)
_GRAPHICS = KnownProgram(kind="desktop", name="graphics")
_OTHER = KnownProgram(kind="other", name=None)
_UNKNOWN = KnownProgram(kind="unknown", name=None)


def program_of(process: GpuProcess) -> KnownProgram:
    """Return what program a process runs; a general row (``other``, ``unknown``) if it is in no table."""
    return identify(process.name, process.command, process.kinds)


def kind_label(kind: ProcessKind, name: str | None) -> str | None:
    """Return what a process is in a word or two, such as ``vLLM server``; None if nothing but its command is known.

    Args:
        kind: its kind.
        name: name of its program, if it is known.
    """
    if kind == "server":
        return name if name and name.endswith(_SERVING_NAMES) else f"{name} server" if name else "server"
    if kind == "desktop":
        return name or "desktop"
    return name


def has_server_title(argv: Sequence[str]) -> bool:
    """Return True if a server has replaced the command line of one of its processes by a title."""
    return bool(argv) and argv[0].startswith(_SERVER_TITLES)


@lru_cache(MAX_REMEMBERED)
def identify(name: str | None, command: str | None, types: tuple[ProcessType, ...] = ()) -> KnownProgram:
    """Return the row of a program.

    Args:
        name: short name of the process.
        command: its command line as one line.
        types: NVML's lists that have the process.
    """
    line = CommandLine(name, command or "")
    found = _INDEX.find(line)
    if found is not None:
        return found
    if types == ("graphics",):
        return _GRAPHICS
    if not command:
        return _UNKNOWN
    return _PYTHON_PROGRAM if line.is_python else _OTHER


@lru_cache(MAX_REMEMBERED)
def program_path(name: str | None, command: str | None) -> str:
    """Return what a command line runs, without its options: the module or script that Python runs, or the program."""
    line = CommandLine(name, command or "")
    return line.module or line.script or line.code.partition("(")[0] or (command or name or "").partition(" ")[0]
