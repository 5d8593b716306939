"""Finds the training tool that a script only starts: LLaMA-Factory's ``src/train.py``, or one of the user's own."""

import ast
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
    """Versions of libraries that the script's path implies."""


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
        entry = _find_entry(open_script(path), re.compile("|".join(f"({name})" for name in commands)))
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


_HARMLESS = ("os", "sys", "warnings", "logging", "multiprocessing", "dotenv", "print", "faulthandler", "exit")
_RUNNERS = ("fire", "typer", "jsonargparse", "asyncio")
"""Modules with functions that call the function they are given, as ``fire.Fire(main)`` does."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool's entry function."""

    function: str
    """Its dotted name: ``llamafactory.train.tuner.run_exp``."""
    line: int
    unread: bool
    """The script passes settings in place of its command line: they are not read."""
    other_line: int | None
    """The first line that does more than start the tool; None: there is none."""


def _find_entry(tree: ast.Module, function: re.Pattern[str]) -> _Entry | None:
    """Return the first function of a training tool that a script names; None: it names none.

    Args:
        tree: the script.
        function: matches the whole dotted names of entry functions.
    """
    nodes = list(ast.walk(tree))
    paths = {name: path for node in nodes for name, path in _imported_names(node)}

    def path(node: ast.AST) -> str:
        text = ast.unparse(node)
        for _ in range(2):  # what a function returned, then where that was imported from
            first, dot, rest = text.partition(".")
            text = f"{paths.get(first, first)}{dot}{rest}"
        return text

    loads = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Load)]
    found = [node for node in loads if isinstance(node, ast.Name | ast.Attribute) and function.fullmatch(path(node))]
    if not found:
        return None
    package = path(found[0]).partition(".")[0]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    given = [each for call in calls if call.func in found for each in (*call.args, *call.keywords)]
    known = {package, *own, *_HARMLESS, *_RUNNERS}
    others: list[ast.expr] = [call for call in calls if path(call.func).partition(".")[0] not in known]
    others += [node for node in nodes if isinstance(node, ast.Attribute | ast.Subscript) and node not in loads]
    return _Entry(
        function=path(found[0]),
        line=found[0].lineno,
        unread=any(path(each).partition(".")[0] != package for each in given),
        other_line=min((node.lineno for node in others), default=None),
    )


def _imported_names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that an import, or an assignment of what a function returns, gives to a part of a library."""
    if isinstance(node, ast.ImportFrom):
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        yield from ((each.id, ast.unparse(node.value.func)) for each in node.targets if isinstance(each, ast.Name))
