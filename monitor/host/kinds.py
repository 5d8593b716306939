"""Kinds of processes: what each is by its command line and its type in NVML's lists; nothing is read for it.

The tables of programs are searched once per command line; the rows of later boards find the answer by it.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from ..snapshot.snapshot import GpuProcess, ProcessType
from .known_programs import PROGRAMS, SERVERS, KnownProgram, ProcessKind


def program_of(process: GpuProcess) -> KnownProgram:
    """Return what program a process runs; a general row (``other``, ``unknown``) if it is in no table."""
    return identify(process.name, process.command, process.kinds)


_SERVING_NAMES = (" Serve", " Serving", " UI", "webui")
"""Ends of names that say already that the program serves."""


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


_SERVER_TITLES = tuple(title for server in SERVERS for title in server.titles)


def has_server_title(argv: Sequence[str]) -> bool:
    """Return True if a server has replaced the command line of one of its processes by a title."""
    return bool(argv) and argv[0].startswith(_SERVER_TITLES)


MAX_REMEMBERED = 4096
_PYTHON_PROGRAM = KnownProgram(kind="training", name=None)
_GRAPHICS = KnownProgram(kind="desktop", name="graphics")
_OTHER = KnownProgram(kind="other", name=None)
_UNKNOWN = KnownProgram(kind="unknown", name=None)


@lru_cache(MAX_REMEMBERED)
def identify(name: str | None, command: str | None, types: tuple[ProcessType, ...] = ()) -> KnownProgram:
    """Return the row of a program.

    Args:
        name: short name of the process.
        command: its command line as one line.
        types: NVML's lists that have the process.
    """
    line = CommandLine(name, command or "")
    found = next((program for program in PROGRAMS if runs(program, line)), None)
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


_PYTHON = re.compile(r"(python|pypy)[\d.]*t?d?$")


_OPTIONS_WITH_VALUE = ("-W", "-X")


_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")


class CommandLine:
    """A command line, taken apart as far as recognising a program needs.

    Args:
        name: short name of the process.
        command: its command line as one line.
    """

    def __init__(self, name: str | None, command: str) -> None:
        self.title = command
        self.names: list[str] = [name] if name else []
        """Names of the process and of the file that runs."""
        self.module = self.script = self.code = ""
        words = command.split()
        self.words = words[1:]
        self.is_python = False
        if words:
            program = words[0].rpartition("/")[2]
            self.names.append(program)
            self.is_python = _PYTHON.match(program) is not None
        if self.is_python:
            self._read_python(words)

    def _read_python(self, words: Sequence[str]) -> None:
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
            self.names.append(self.script.rpartition("/")[2])
            inside = _PACKAGES.sub("", self.script)
            if inside != self.script:
                self.module = inside.removesuffix(".py").removesuffix("/__main__").replace("/", ".")


def runs(program: KnownProgram, line: CommandLine) -> bool:
    """Return True if a process with this command line runs the program."""
    if program.with_word and not any(word in line.words for word in program.with_word):
        return False
    beginnings = tuple(name[:-1] for name in program.executables if name[-1] == "*")
    return (
        any(name in program.executables or name.startswith(beginnings) for name in line.names)
        or f"{line.module}.".startswith(tuple(f"{module}." for module in program.modules))
        or line.title.startswith(program.titles)
        or (line.script != "" and f"/{line.script}".endswith(tuple(f"/{ending}" for ending in program.scripts)))
        or any(part in line.code for part in program.code)
    )
