"""What a process is, from its command line and its type in NVML's lists: nothing is read for it.

The tables of programs are searched once per command line; the rows of later boards find the answer by it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from .desktop_programs import DESKTOP
from .helper_programs import HELPERS, NOTEBOOKS, TRAINING
from .known_program import KnownProgram
from .server_programs import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...snapshot import GpuProcess, ProcessType
    from .known_program import ProcessKind

PROGRAMS = (*SERVERS, *NOTEBOOKS, *HELPERS, *TRAINING, *DESKTOP)
"""Every known program; the first that matches counts."""
MAX_REMEMBERED = 4096
_SERVER_TITLES = tuple(title for server in SERVERS for title in server.titles)
_PYTHON_PROGRAM = KnownProgram(kind="training", name=None)
_GRAPHICS = KnownProgram(kind="desktop", name="graphics")
_OTHER = KnownProgram(kind="other", name=None)
_UNKNOWN = KnownProgram(kind="unknown", name=None)
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?d?$")
_OPTIONS_WITH_VALUE = ("-W", "-X")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")


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
        return f"{name} server" if name else "server"
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
    found = find_program(name, command, PROGRAMS)
    if found is not None:
        return found
    if types == ("graphics",):
        return _GRAPHICS
    if not command:
        return _UNKNOWN
    return _PYTHON_PROGRAM if _is_python(command) else _OTHER


@lru_cache(MAX_REMEMBERED)
def program_path(name: str | None, command: str | None) -> str:
    """Return what a command line runs, without its options: the module or script that Python runs, or the program."""
    line = _CommandLine(name, command or "")
    return line.module or line.script or line.code.partition("(")[0] or (command or name or "").partition(" ")[0]


def find_program(name: str | None, command: str | None, programs: Iterable[KnownProgram]) -> KnownProgram | None:
    """Return the first of these programs that a process runs."""
    line = _CommandLine(name, command or "")
    return next((program for program in programs if line.runs(program)), None)


class _CommandLine:
    """A command line, taken apart as far as recognising a program needs."""

    def __init__(self, name: str | None, command: str) -> None:
        self.title = command
        self.names: set[str] = {name} if name else set()
        self.module = self.script = self.code = ""
        words = command.split()
        self.words = words[1:]
        if words:
            self.names.add(words[0].rpartition("/")[2])
            if _is_python(command):
                self._read_python(words)

    def runs(self, program: KnownProgram) -> bool:
        """Return True if it is this program's."""
        found = (
            any(_matches(name, pattern) for pattern in program.executables for name in self.names)
            or any(self.module == module or self.module.startswith(f"{module}.") for module in program.modules)
            or any(f"/{self.script}".endswith(f"/{ending}") for ending in program.scripts)
            or self.title.startswith(program.titles or ("\0",))
            or any(part in self.code for part in program.code)
        )
        return found and (not program.with_word or any(word in self.words for word in program.with_word))

    def _read_python(self, words: list[str]) -> None:
        at = 1
        while at < len(words) and words[at].startswith("-"):
            if words[at] == "-m":
                self.module = words[at + 1] if at + 1 < len(words) else ""
                return
            if words[at] == "-c":
                self.code = " ".join(words[at + 1 :])
                return
            at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
        if at < len(words):
            self.script = words[at]
            self.names.add(self.script.rpartition("/")[2])
            inside = _PACKAGES.sub("", self.script)
            if inside != self.script:
                self.module = inside.removesuffix(".py").removesuffix("/__main__").replace("/", ".")


def _is_python(command: str) -> bool:
    return _PYTHON.match(command.split(None, 1)[0].rpartition("/")[2]) is not None if command.strip() else False


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
