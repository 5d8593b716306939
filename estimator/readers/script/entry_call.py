"""Finds the training tool that a script starts, where starting it is all that the script does."""

import ast
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .follow import Reader
from .notes import Notes
from .options import Options
from .values import UNKNOWN, Call, Function, Instance, Name, Scope

_HARMLESS = ("os", "sys", "warnings", "logging", "multiprocessing", "dotenv", "print", "faulthandler")
"""Modules and functions that a script may call besides: they change no memory of the tool."""
_RUNNERS = ("fire.Fire", "sys.exit", "exit", "typer.run", "jsonargparse.CLI", "asyncio.run", "print")
"""Functions that call what they are given, or are given what it returned."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool's entry function."""

    function: str
    """Its dotted name: ``llamafactory.train.tuner.run_exp``."""
    line: int
    unread: bool
    """The script passes settings in place of its command line, or changes that: they are not read."""
    other_line: int | None
    """The first line that does something else than to start the tool; None: there is none."""


class _Starts(Reader):
    """Follows a script to its calls of libraries.

    Args:
        entries: matches the whole dotted names of entry functions.
    """

    def __init__(self, entries: re.Pattern[str]) -> None:
        notes = Notes(find_config=lambda _: None, versions={}, ranks=1, options=Options({}, ()))
        super().__init__("", notes, environ={}, argv=[""])
        self._entries = entries
        self.found: tuple[str, Call] | None = None
        self.others: list[tuple[int, str]] = []

    def library(self, call: Call) -> Any:
        """Note a function that is not the script's; what it returns has its name."""
        first = call.value(0)
        if call.path in _RUNNERS and isinstance(first, Function | Name):
            return self.call(first, Call(self, call.node, getattr(first, "name", "")))
        if self.found is None and self._entries.fullmatch(call.path):
            self.found = (call.path, call)
        elif call.path not in _RUNNERS:
            self.others.append((getattr(call.node, "lineno", 0), call.path))
        return Name(call.path)

    def _skip(self, body: Sequence[ast.AST], why: str, scope: Scope, at: ast.AST) -> None:
        """Note statements of which only the running script knows whether they run."""
        self.others.append((getattr(at, "lineno", 0), ""))
        super()._skip(body, why, scope, at)

    def own_method(self, instance: Instance, call: Call) -> Any:
        """Note a method of the script's own, which is not followed."""
        self.others.append((getattr(call.node, "lineno", 0), ""))
        return UNKNOWN


def find_entry(tree: ast.Module, function: re.Pattern[str]) -> Entry | None:
    """Return the first call of an entry function that a script makes without a condition; None: it makes none.

    Args:
        tree: the script.
        function: matches the whole dotted names of entry functions.

    Raises:
        BudgetSpentError: the script is too long to follow.
    """
    reader = _Starts(function)
    reader.read(tree)
    if reader.found is None:
        return None
    path, call = reader.found
    package = path.partition(".")[0]
    given = [
        each
        for each in (*call.args, *call.kwargs.values())
        if not (isinstance(each, Name) and each.path.partition(".")[0] == package)
    ]
    others = [line for line, other in reader.others if not _is_harmless(other, package)]
    others += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "argv"]
    return Entry(
        function=path,
        line=getattr(call.node, "lineno", 0),
        unread=bool(given) or call.unknown_table is not None,
        other_line=min(others, default=None),
    )


def _is_harmless(path: str, package: str) -> bool:
    return path.partition(".")[0] in (package, *_HARMLESS) and not path.endswith("__setitem__")
