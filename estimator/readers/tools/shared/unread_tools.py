"""Training tools that are not read: how their programs and files are recognized, and what answers in place of them.

Names of programs and of settings: the tools' repositories, as of 2026.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ...arguments.table import read_file
from ...program.launch import Launch, ToolCommand
from .tool import has_paths


class UnreadTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training tool that is known by name only."""

    name: str
    instead: str
    """What to do, as the end of a sentence, or one of the file's sentences for it."""
    programs: str = "(?!)"
    """Regular expression of its modules and scripts."""
    commands: tuple[ToolCommand, ...] = ()
    """Commands that start it, such as ``megatron sft``."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Dotted settings; a file that has all of one row is the tool's."""

    @property
    def sentence(self) -> str:
        """What the tool is, and what to do."""
        return f"{self.name} is not read; {_FILE.instead.get(self.instead, self.instead)}"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``unread_tools.toml``."""

    instead: Mapping[str, str]
    tool: tuple[UnreadTool, ...]


_FILE = read_file("unread_tools", _File)
UNREAD_TOOLS = _FILE.tool


def unread_tool_of_launch(launch: Launch) -> UnreadTool | None:
    """Return the tool that is not read whose program a launch line starts."""
    program = launch.module or (launch.script or "").removesuffix(".py")
    return next((tool for tool in UNREAD_TOOLS if re.fullmatch(tool.programs, program)), None)


def unread_tool_of_table(table: Mapping[str, Any], *, least: int = 1) -> UnreadTool | None:
    """Return the tool that is not read whose configuration file a table is from, by at least so many settings."""
    rows = ((tool, [row for row in tool.keys if len(row) >= least]) for tool in UNREAD_TOOLS)
    return next((tool for tool, keys in rows if has_paths(table, keys)), None)
