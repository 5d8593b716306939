"""Finds the training tool that a script starts, where starting it is all that the script does."""

import ast
import re
from collections.abc import Iterator, Sequence

import msgspec

_HARMLESS = ("os", "sys", "warnings", "logging", "multiprocessing", "dotenv", "print", "faulthandler", "dict")
"""Modules and functions that a script may call besides: they change no memory of the tool."""
_RUNNERS = ("fire.Fire", "sys.exit", "exit", "typer.run", "jsonargparse.CLI", "asyncio.run", "print")
"""Functions that call what they are given, or are given what it returned."""
_SKIPPED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass, ast.Assert)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool's entry function."""

    function: str
    """Its dotted name: ``llamafactory.train.tuner.run_exp``."""
    line: int
    arguments: tuple[str, ...] | None
    """What the script passes, as the words of a command line; None: the tool reads the script's own command line."""
    unread: bool
    """The script passes settings that cannot be read here."""
    variables: dict[str, tuple[int, str | None]]
    """Variables of the environment that the script sets before, with line and value; None: not known."""
    other_line: int | None
    """The first line that does something else than to start the tool; None: there is none."""


def find_entry(tree: ast.Module, function: re.Pattern[str]) -> Entry | None:
    """Return the first call of an entry function that a script makes without a condition; None: it makes none.

    Args:
        tree: the script.
        function: matches the whole dotted names of entry functions.
    """
    reader = _Reader(tree, function)
    reader.follow(tree.body)
    return reader.entry()


class _Reader:
    """Follows a script's own statements and functions in order, without conditions and imports."""

    def __init__(self, tree: ast.Module, function: re.Pattern[str]) -> None:
        self._function = function
        self._names = dict(_imported(tree))
        self._bodies = {node.name: node.body for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._values: dict[str, ast.expr] = {}
        self._argv: ast.expr | None = None
        self._variables: dict[str, tuple[int, str | None]] = {}
        self._found: tuple[str, int, ast.Call] | None = None
        self._others: list[tuple[int, str]] = []

    def entry(self) -> Entry | None:
        """Return what was found."""
        if self._found is None:
            return None
        name, line, call = self._found
        package = name.partition(".")[0]
        try:
            argv = ast.literal_eval(self._argv)[1:] if self._argv is not None else ()
            words, unread = tuple(self._passed(call, package)) or tuple(map(str, argv)), False
        except (ValueError, TypeError):
            words, unread = (), True
        other = next((line for line, called in self._others if called != package), None)
        return Entry(
            function=name,
            line=line,
            arguments=words or None,
            unread=unread,
            variables=self._variables,
            other_line=other,
        )

    def follow(self, body: Sequence[ast.stmt]) -> None:
        """Follow statements."""
        for statement in body:
            is_main = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
            if is_main or isinstance(statement, ast.Try | ast.With):
                self.follow(getattr(statement, "body", ()))
            elif isinstance(statement, ast.Expr | ast.Return | ast.Assign | ast.AnnAssign) and statement.value:
                self._evaluate(statement, statement.value)
            elif not isinstance(statement, (*_SKIPPED, ast.Return)):
                self._others.append((statement.lineno, ""))

    def _evaluate(self, statement: ast.stmt, value: ast.expr) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", value)]
        for target in targets:
            changed = self._dotted(getattr(target, "value", target))
            if isinstance(statement, ast.Expr | ast.Return):
                continue
            if isinstance(target, ast.Name):
                self._values[target.id] = value
                self._names[target.id] = self._dotted(value) or target.id
            elif self._dotted(target) == "sys.argv":
                self._argv = value
            elif changed == "os.environ" and isinstance(target, ast.Subscript):
                key = getattr(target.slice, "value", None)
                known = getattr(value, "value", None)
                self._variables[str(key)] = (statement.lineno, known if isinstance(known, str) else None)
            else:
                self._others.append((statement.lineno, ""))
        if isinstance(value, ast.Call):
            self._call(value)
        elif not isinstance(value, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.Name):
            self._others.append((statement.lineno, ""))

    def _call(self, call: ast.Call) -> None:
        name = self._dotted(call.func)
        if name in _RUNNERS:
            for given in call.args:
                self._call(given if isinstance(given, ast.Call) else ast.Call(given, [], [], lineno=call.lineno))
        elif name in self._bodies:
            self.follow(self._bodies.pop(name))  # each once: functions may call each other
        elif self._function.fullmatch(name):
            self._found = self._found or (name, call.lineno, call)
        elif name.partition(".")[0] not in _HARMLESS or name.startswith("sys.argv"):
            self._others.append((call.lineno, name.partition(".")[0]))

    def _dotted(self, node: ast.expr) -> str:
        """Return the dotted name of a function, or of the function that made an object; empty if it has none."""
        if isinstance(node, ast.Call):
            return self._dotted(node.func)
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return self._names.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def _passed(self, call: ast.Call, package: str) -> Iterator[str]:
        """Yield what a call passes, as words; nothing for what the tool's own functions returned.

        Raises:
            TypeError, ValueError: it cannot be read.
        """
        for given in call.args:
            node = self._values.get(given.id, given) if isinstance(given, ast.Name) else given
            root = self._dotted(node).partition(".")[0]
            if isinstance(node, ast.Call) and node.keywords and root in (package, "dict"):  # SftArguments(model=...)
                yield from self._passed(node, package)
            elif root != package:
                value = ast.literal_eval(node)
                yield from _flags(value) if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        yield from _flags({each.arg: self._literal(each.value) for each in call.keywords})

    def _literal(self, node: ast.expr) -> object:
        return ast.literal_eval(self._values.get(node.id, node) if isinstance(node, ast.Name) else node)


def _flags(table: dict[object, object]) -> Iterator[str]:
    """Yield a table as flags.

    Raises:
        TypeError: a name is no text (``**settings``).
    """
    for name, value in table.items():
        if not isinstance(name, str):
            raise TypeError(name)
        if value is not None:
            yield from (f"--{name}", *(map(str, value) if isinstance(value, list | tuple) else (str(value),)))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports anywhere in a script make, with what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)
