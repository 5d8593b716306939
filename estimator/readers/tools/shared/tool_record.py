"""The record that describes a training tool: how it is recognised, read and edited."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...program import Program, ToolCommand
from ...source import JobReading

ConfigTable = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolKey:
    """A tool's setting that stands for one job key and nothing else."""

    name: str
    values: Mapping[Any, Any] | None = None
    """The tool's value for each value of the job; None: they are equal."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Settings that have to be set with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolKeys:
    """A tool's own names for job keys, for writing changes down as edits of its configuration."""

    settings: Mapping[str, ToolKey] = field(default_factory=dict)
    """Settings by job key."""
    derived: Mapping[str, str] = field(default_factory=dict)
    """Job keys that the tool computes from another setting, which stays as it is."""
    always_flags: bool = False
    """True: names have dashes in front in files too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A training tool that is read by its own names."""

    name: str
    """The name for people."""
    programs: re.Pattern[str]
    """Its programs: names of modules, and paths of scripts without ``.py``."""
    commands: tuple[ToolCommand, ...] = ()
    """Its own commands on the PATH."""
    flags: frozenset[str] = frozenset()
    """Flags that only its programs take, all of them together, for programs of other names."""
    is_config: Callable[[ConfigTable], bool]
    """Return True for the table of one of its configuration files."""
    read: Callable[[Program], JobReading]
    """Read a program, or a configuration file alone, into a job."""
    keys: ToolKeys
    """Its own names for job keys."""


def has_key(table: ConfigTable, key: str) -> bool:
    """Return True if a table or one nested inside it has a key."""
    return key in table or any(has_key(value, key) for value in table.values() if isinstance(value, Mapping))


def has_any(table: ConfigTable, *keys: str) -> bool:
    """Return True if a table has one of these keys."""
    return not table.keys().isdisjoint(keys)


def section(table: ConfigTable, key: str) -> ConfigTable:
    """Return a table's nested table; empty if it has none of that name."""
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}
