"""The training tools: every module of this folder, and module ``recipe`` of a room, that exports a ``TOOL``.

A tool is found by the program that a launch line starts, by the contents of a configuration file, or by name. Launch
lines are parsed here too, as the tools' own commands are part of them.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from itertools import chain
from pathlib import PurePath

from .. import tools
from ..arguments.table import Library, library
from ..program.launch import Launch, LaunchParser
from ..trl.methods import TABLE
from .shared.tool import Tool
from .shared.unread_tools import UNREAD_TOOLS

TRAINER_LIBRARIES: Mapping[str, Callable[[], Library]] = {
    "TRL": lambda: TABLE,
    "transformers": partial(library, "transformers"),
}
"""Libraries whose programs are read without a ``Tool``, by the name that ``tool_of_line`` has for them."""


@cache
def all_tools() -> tuple[Tool, ...]:
    """Return the tools in the order of their modules' names. Their modules are imported on the first call."""
    found = [each for each in pkgutil.iter_modules(tools.__path__) if each.name != "shared"]
    names = sorted(f"{tools.__name__}.{each.name}{'.recipe' if each.ispkg else ''}" for each in found)
    modules = [import_module(name) for name in names if name != __name__]
    return tuple(module.TOOL for module in modules if hasattr(module, "TOOL"))


def find_tool_by_launch(launch: Launch) -> Tool | None:
    """Return the tool whose program a launch line starts; None for scripts of the user's own and TRL's."""
    script = PurePath(launch.script or "")
    program = launch.module or (str(script.with_suffix("")) if script.name else "")
    if (launch.script or "").endswith(".sh"):
        program = launch.script or ""
    flags = {word.partition("=")[0].replace("_", "-") for word in launch.arguments}
    by_program = (tool for tool in all_tools() if re.fullmatch(tool.programs, program))
    by_flags = (tool for tool in all_tools() if tool.flags and tool.flags <= flags)
    return next(by_program, None) or next(by_flags, None)


def table_of_tool(name: str | None) -> Library:
    """Return the arguments of a tool, or of ``TRL`` or ``transformers``; an empty table if it is unknown."""
    tables = {**TRAINER_LIBRARIES, **{tool.name: tool.table for tool in all_tools()}}
    return tables[name]() if name in tables else Library(title="")


def parse_launch(argv: Sequence[str]) -> Launch:
    """Return a launch line as its parts: ``LaunchParser.parse`` with the tools' commands."""
    return _launch_parser().parse(argv)


def split_launch_line(line: Sequence[str]) -> list[str]:
    """Split a launch line into words, even if pasted as one: ``LaunchParser.split`` with the tools' commands."""
    return _launch_parser().split(line)


def find_program_index(argv: Sequence[str]) -> int | None:
    """Return the position of the program: ``LaunchParser.find_program_index`` with the tools' commands."""
    return _launch_parser().find_program_index(argv)


def _launch_parser() -> LaunchParser:
    commands = [tool.commands for tool in all_tools()] + [tool.commands for tool in UNREAD_TOOLS]
    return LaunchParser(chain.from_iterable(commands))
