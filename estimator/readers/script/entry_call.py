"""Finds the training tool that a script starts, by the functions that it names; nothing is followed."""

import ast
import re
from collections.abc import Iterator

import msgspec

_HARMLESS = ("os", "sys", "warnings", "logging", "multiprocessing", "dotenv", "print", "faulthandler", "exit")
_RUNNERS = ("fire", "typer", "jsonargparse", "asyncio")
"""Modules whose functions call what they are given."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool's entry function."""

    function: str
    """Its dotted name: ``llamafactory.train.tuner.run_exp``."""
    line: int
    unread: bool
    """The script passes settings in place of its command line: they are not read."""
    other_line: int | None
    """The first line that does something else than to start the tool; None: there is none."""


def find_entry(tree: ast.Module, function: re.Pattern[str]) -> Entry | None:
    """Return the first function of a training tool that a script names; None: it names none.

    Args:
        tree: the script.
        function: matches the whole dotted names of entry functions.
    """
    nodes = list(ast.walk(tree))
    paths = {name: path for node in nodes for name, path in _named(node)}

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
    return Entry(
        function=path(found[0]),
        line=found[0].lineno,
        unread=any(path(each).partition(".")[0] != package for each in given),
        other_line=min((node.lineno for node in others), default=None),
    )


def _named(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that an import, or an assignment of what a function returns, gives to a part of a library."""
    if isinstance(node, ast.ImportFrom):
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        yield from ((each.id, ast.unparse(node.value.func)) for each in node.targets if isinstance(each, ast.Name))
