"""Search for the program of a command line in tables of programs, by look-ups rather than row by row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .known_program import KnownProgram

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


class ProgramIndex:
    """Programs by their marks.

    Args:
        programs: the rows; of several that match, the first counts.
    """

    def __init__(self, programs: Iterable[KnownProgram]) -> None:
        self._programs = tuple(programs)
        self._names: dict[str, list[int]] = {}
        self._modules: dict[str, list[int]] = {}
        self._beginnings: list[tuple[str, int]] = []
        """Beginnings of names."""
        self._titles: list[tuple[str, int]] = []
        self._scripts: list[tuple[str, int]] = []
        self._code: list[tuple[str, int]] = []
        for at, program in enumerate(self._programs):
            for name in program.executables:
                if name.endswith("*"):
                    self._beginnings.append((name[:-1], at))
                else:
                    self._names.setdefault(name, []).append(at)
            for module in program.modules:
                self._modules.setdefault(module, []).append(at)
            self._titles += [(title, at) for title in program.titles]
            self._scripts += [(f"/{ending}", at) for ending in program.scripts]
            self._code += [(part, at) for part in program.code]

    def find(self, line: CommandLine) -> KnownProgram | None:
        """Return the first program that runs in a process with this command line; None: none of these."""
        for at in sorted(set(self._matches(line))):
            program = self._programs[at]
            if not program.with_word or any(word in line.words for word in program.with_word):
                return program
        return None

    def _matches(self, line: CommandLine) -> Iterator[int]:
        for name in line.names:
            yield from self._names.get(name, ())
            yield from (at for beginning, at in self._beginnings if name.startswith(beginning))
        parts = line.module.split(".") if line.module else []
        for count in range(1, len(parts) + 1):
            yield from self._modules.get(".".join(parts[:count]), ())
        yield from (at for title, at in self._titles if line.title.startswith(title))
        if line.script:
            yield from (at for ending, at in self._scripts if f"/{line.script}".endswith(ending))
        if line.code:
            yield from (at for part, at in self._code if part in line.code)
