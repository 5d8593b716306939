"""Finds the training tool that a script starts, where starting it is all that the script does."""

import ast
import re
from collections.abc import Iterator, Mapping

import msgspec

_HARMLESS = ("os", "sys", "warnings", "logging", "multiprocessing", "dotenv", "print", "faulthandler")
"""Modules and functions that a script may call besides: they change no memory of the tool."""
_RUNNERS = ("fire.Fire", "sys.exit", "exit", "typer.run", "jsonargparse.CLI", "asyncio.run", "print")
"""Functions that call what they are given, or are given what it returned."""
_SKIPPED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass, ast.Assert)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool's entry function."""

    function: str
    """Its dotted name: ``llamafactory.train.tuner.run_exp``."""
    line: int
    unread: bool
    """The script passes settings in place of its command line, or changes that: they are not read."""
    other_line: int | None
    """The first line that does something else than to start the tool; None: there is none."""


def find_entry(tree: ast.Module, function: re.Pattern[str]) -> Entry | None:
    """Return the first call of an entry function that a script makes without a condition; None: it makes none.

    Args:
        tree: the script.
        function: matches the whole dotted names of entry functions.
    """
    names = dict(_imported(tree))
    bodies = {node.name: node.body for node in tree.body if isinstance(node, ast.FunctionDef)}
    found: tuple[str, ast.Call] | None = None
    others: list[tuple[int, str]] = []
    pending = list(tree.body)
    while pending:
        statement = pending.pop(0)
        is_main = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        value = getattr(statement, "value", None)
        if is_main or isinstance(statement, ast.Try | ast.With):
            pending[:0] = getattr(statement, "body", [])
            continue
        if isinstance(statement, _SKIPPED) or (
            isinstance(statement, ast.Expr | ast.Return) and isinstance(value, ast.Constant | None)
        ):
            continue
        is_named = isinstance(statement, ast.Assign) and all(isinstance(each, ast.Name) for each in statement.targets)
        while isinstance(value, ast.Call) and _dotted(value.func, names) in _RUNNERS and value.args:
            value = value.args[0] if isinstance(value.args[0], ast.Call) else ast.Call(value.args[0], [], [])
        name = _dotted(value, names) if isinstance(value, ast.Call) else ""
        if is_named and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            names[statement.targets[0].id] = name
        if name in bodies:
            pending[:0] = bodies.pop(name)  # each once: functions may call each other
        elif name and isinstance(value, ast.Call) and function.fullmatch(name):
            found = found or (name, ast.copy_location(value, statement))
        elif not name or not (is_named or isinstance(statement, ast.Expr | ast.Return)):
            others.append((statement.lineno, ""))
        elif name.partition(".")[0] not in _HARMLESS or name.startswith("sys.argv"):
            others.append((statement.lineno, name.partition(".")[0]))
    if found is None:
        return None
    name, call = found
    package = name.partition(".")[0]
    given: list[ast.AST] = [each for each in call.args if _dotted(each, names).partition(".")[0] != package]
    given += [each for one in call.args if isinstance(one, ast.Call) for each in one.keywords]
    return Entry(
        function=name,
        line=call.lineno,
        unread=bool(given or call.keywords),
        other_line=next((line for line, called in others if called != package), None),
    )


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the dotted name of a function, or of the function that made an object; empty if it has none."""
    if isinstance(node, ast.Call):
        return _dotted(node.func, names)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports anywhere in a script make, with what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)
