"""Building blocks that several tools use."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec

from ...arguments.table import Library, library, read_file
from ...program.launch import ToolCommand
from ...program.program import Program
from ...source.evidence import JobReading

ConfigTable = Mapping[str, Any]


class ToolNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a training tool is recognised: a row of ``tools.toml``."""

    name: str
    """The name for people."""
    programs: str
    """Its programs, as a regular expression: names of modules, and paths of scripts without ``.py``."""
    commands: tuple[ToolCommand, ...] = ()
    """Its own commands on the PATH."""
    flags: frozenset[str] = frozenset()
    """Flags that only its programs take, all of them together, for programs of other names."""
    entries: Mapping[str, str] = {}
    """Functions that a script of another name starts it with, as patterns of dotted names, and the equal command."""
    scripts: Mapping[str, str] = {}
    """Scripts that its repository has, as patterns of paths, and the equal command, for those that are not here."""
    transformers: str | None = None
    """The oldest transformers that its command runs with; None: any."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Dotted settings; a configuration file that has all of one row is the tool's."""


class Tool(ToolNames, frozen=True, kw_only=True):
    """A training tool that is read by its own names."""

    read: Callable[[Program], JobReading]
    """Read a program, or a configuration file alone, into a job."""
    table: Callable[[], Library]
    """What its arguments mean, read when it is called."""
    is_own: Callable[[ConfigTable], bool] | None = None
    """Return True for the table of one of its configuration files; None: ``keys`` tell."""

    def is_config(self, table: ConfigTable) -> bool:
        """Return True for the table of one of its configuration files."""
        return has_paths(table, self.keys) if self.is_own is None else self.is_own(table)


def known_tool(
    module: str, read: Callable[[Program], JobReading], is_own: Callable[[ConfigTable], bool] | None = None
) -> Tool:
    """Return a tool by the name of its module, which its row of ``tools.toml`` and its file of arguments have too."""
    row = msgspec.structs.asdict(_rows()[module])
    return Tool(**row, read=read, is_own=is_own, table=partial(library, module))


@cache
def _rows() -> dict[str, ToolNames]:
    return read_file("tools", dict[str, ToolNames])


def has_paths(table: ConfigTable, rows: Sequence[Sequence[str]]) -> bool:
    """Return True if a table has all dotted settings of one of several rows."""
    return any(all(_has_path(table, key) for key in keys) for keys in rows)


def _has_path(table: Any, key: str) -> bool:
    """Return True if a table has a dotted setting."""
    for name in key.split("."):
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True


def has_key(table: ConfigTable, key: str) -> bool:
    """Return True if a table or one nested inside it has a key."""
    return key in table or any(has_key(value, key) for value in table.values() if isinstance(value, Mapping))


def has_any(table: ConfigTable, *keys: str) -> bool:
    """Return True if a table has one of these keys."""
    return not table.keys().isdisjoint(keys)
