"""Finds the training tool that a script only starts: LLaMA-Factory's ``src/train.py``, or one of the user's own."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath

import msgspec

from ..common.errors import InputError
from ..common.records import replace
from .program.launch import Launch
from .script.entry_call import find_entry
from .script.script_settings import open_script
from .source.data_files import read_table
from .source.filesystem_view import FilesystemView
from .source.flags import parse_flags
from .source.versions import AssumedVersion
from .tools.shared.settings_files import CONFIG_SUFFIXES
from .tools.shared.tool import ConfigTable
from .tools.tool_registry import all_tools, find_tool_by_launch, parse_launch


class StartedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A launch line whose script starts a tool, as the tool's own command line."""

    launch: Launch
    note: str | None = None
    """How it is known, where the script is not here."""
    doubts: tuple[str, ...] = ()
    """What of the script is not counted."""
    assumed: Mapping[str, AssumedVersion] = {}
    """Versions that its path speaks for."""


_OLD_SCRIPT = "train_bash.py"
"""LLaMA-Factory's until May 2024: ``src/train.py`` since 0.8 (setup.py of 0.7: transformers 4.37 to 4.40)."""


def find_started_tool(launch: Launch, filesystem: FilesystemView) -> StartedTool | None:
    """Return the tool that a script of another name starts: by what it calls; where it is not here, by its path."""
    script = launch.script or ""
    if not script.endswith(".py") or launch.trl_command or find_tool_by_launch(launch) is not None:
        return None
    path = filesystem.resolve(script)
    if not os.access(path, os.F_OK):
        return _by_path(launch, filesystem)
    commands = {r"trl\.cli(\.main)?\.main": "trl"}
    for tool in all_tools():
        commands.update(tool.entries)
    try:
        entry = find_entry(open_script(path), re.compile("|".join(f"({name})" for name in commands)))
    except (InputError, RecursionError):  # the reader of scripts says what is wrong with it
        return None
    if entry is None:
        return None
    command = next(command for name, command in commands.items() if re.fullmatch(name, entry.function))
    name, function = PurePath(script).name, entry.function.rpartition(".")[2]
    doubts = [f"{name}:{entry.line}: {function} gets settings that vramtop cannot read."] if entry.unread else []
    if entry.other_line is not None:
        doubts.append(f"{name}:{entry.other_line}: script code other than {function} is not counted.")
    return StartedTool(launch=_with_command(launch, command), doubts=tuple(doubts))


def _by_path(launch: Launch, filesystem: FilesystemView) -> StartedTool | None:
    """Return the tool whose repository has a script of that path, if the settings on the line are the tool's too."""
    script = launch.script or ""
    for tool in all_tools():
        command = next((command for path, command in tool.scripts.items() if re.fullmatch(path, script)), None)
        if command is not None and any(map(tool.is_config, _tables(launch, filesystem))):
            note = f"{script} was not found; vramtop assumes the one of {tool.name}'s repository."
            old = {"llamafactory": "0.7", "transformers": "4.40"} if PurePath(script).name == _OLD_SCRIPT else {}
            why = f"the last with {_OLD_SCRIPT}"
            assumed = {library: AssumedVersion(version, why) for library, version in old.items()}
            return StartedTool(launch=_with_command(launch, command), note=note, assumed=assumed)
    return None


def _tables(launch: Launch, filesystem: FilesystemView) -> Iterator[ConfigTable]:
    """Yield the settings of a launch line: those of its configuration files, then its flags."""
    for word in launch.arguments:
        if word.endswith(CONFIG_SUFFIXES):
            with suppress(InputError):
                yield read_table(filesystem.resolve(word))
    yield {name: setting.value for name, setting in parse_flags(launch.arguments)[0].items()}


def _with_command(launch: Launch, command: str) -> Launch:
    """Return a launch line with a tool's command in place of its script."""
    inner = parse_launch([*shlex.split(command), *launch.arguments])
    launchers, options = (*launch.launchers, *inner.launchers), {**launch.options, **inner.options}
    return replace(inner, launchers=launchers, options=options, assignments=launch.assignments)
