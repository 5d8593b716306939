"""Source files that recorded stacks name, where they are on this machine: which class and call a line belongs to.

Torch records the file, line and name of a frame, and no class (``appendSymbolized`` in
``torch/csrc/profiler/python/combined_traceback.cpp`` of torch 2.13 takes ``co_name``). A file is parsed, never
imported, and counts only if all frames that were recorded in it stand in functions of their names: otherwise it is
another version of it.
"""

import ast
import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..records import StackFrame

_MAX_FILES = 200
_MAX_FILE_BYTES = 2 * 2**20
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class SourceFunction:
    """A function in a source file."""

    node: _Function
    class_name: str | None
    """The class that defines it; None: it is no method."""
    methods: frozenset[str] = frozenset()
    """All methods of that class, which are no modules."""

    def called(self, line: int) -> str | None:
        """Return the attribute of ``self`` that a line calls, as a path; None: none, or several.

        Elements of a list of modules are ``*``: ``layers.*`` for ``layer(...)`` in ``for layer in self.layers``.
        """
        calls = [call for call in self._calls if call.lineno <= line <= (call.end_lineno or call.lineno)]
        begun = [call for call in calls if line in (call.lineno, call.func.end_lineno)]
        found = {path for call in begun or calls if (path := self._target(call.func))}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]

    @cached_property
    def _locals(self) -> dict[str, str]:
        """Names of local variables that are modules, with the paths of these."""
        found: dict[str, str] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.For | ast.comprehension):
                path = next((path for each in ast.walk(node.iter) if (path := _path(each)) is not None), None)
                if path is not None:
                    element = f"{path}.*" if path else "*"
                    found |= {name.id: element for name in ast.walk(node.target) if isinstance(name, ast.Name)}
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                path = _path(node.value)
                if path:
                    found[node.targets[0].id] = path
        return found

    def _target(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name):
            return self._locals.get(function.id)
        path = (_path(function) or "").removesuffix(".forward")
        return path if path and path not in self.methods else None


def _path(node: ast.AST) -> str | None:
    """Return the path of an attribute of ``self``; empty: ``self`` itself; None: it is something else."""
    if isinstance(node, ast.Name):
        return "" if node.id == "self" else None
    if isinstance(node, ast.Subscript | ast.Attribute):
        above = _path(node.value)
        if above is None or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
            return above
        return f"{above}.{'*' if isinstance(node, ast.Subscript) else node.attr}".lstrip(".")
    return None


class SourceFiles:
    """The source files of a snapshot's frames.

    Args:
        frames: all frames that were recorded.
        until: Unix seconds of the snapshot: a file that was changed later is another one; None: unknown.
    """

    def __init__(self, frames: Iterable[StackFrame], *, until: float | None = None) -> None:
        self._until = until
        self._frames: dict[str, set[tuple[int, str]]] = {}
        for frame in frames:
            self._frames.setdefault(frame.file, set()).add((frame.line, frame.function))
        self._functions: dict[str, tuple[SourceFunction, ...]] = {}

    def function(self, frame: StackFrame) -> SourceFunction | None:
        """Return the function of a frame; None: its file is not here, or is another version."""
        functions = self._functions.get(frame.file)
        if functions is None:
            functions = self._read(frame.file) if len(self._functions) < _MAX_FILES else ()
            self._functions[frame.file] = functions
        return _at(functions, frame.line, frame.function)

    def _read(self, file: str) -> tuple[SourceFunction, ...]:
        text = _text(file, self._until)
        if text is None:
            return ()
        try:
            with warnings.catch_warnings():  # of the other file's syntax
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
            functions = tuple(_functions(tree, None))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ()
        named = ((line, name) for line, name in self._frames[file] if name.isidentifier())
        return functions if all(_at(functions, line, name) for line, name in named) else ()


def _at(functions: Iterable[SourceFunction], line: int, name: str) -> SourceFunction | None:
    """Return the function of a name that a line stands in; None: the innermost function there has another name."""
    around = [each for each in functions if each.node.lineno <= line <= (each.node.end_lineno or 0)]
    innermost = max(around, key=lambda each: each.node.lineno, default=None)
    return innermost if innermost is not None and innermost.node.name == name else None


def _functions(
    node: ast.AST, class_name: str | None, methods: frozenset[str] = frozenset()
) -> Iterator[SourceFunction]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            names = frozenset(each.name for each in child.body if isinstance(each, _Function))
            yield from _functions(child, child.name, names)
        elif isinstance(child, _Function):
            yield SourceFunction(child, class_name, methods)
            yield from _functions(child, None)
        else:
            yield from _functions(child, class_name, methods)


def _text(file: str, until: float | None) -> bytes | None:
    """Return a regular file's text; None: there is none, it is too large, or it is newer than expected."""
    if not file.endswith(".py"):
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as opened:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_FILE_BYTES:
            return None
        if until is not None and facts.st_mtime > until:
            return None
        return opened.read(_MAX_FILE_BYTES)
