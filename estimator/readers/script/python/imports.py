"""Modules in the script's folder that it imports: parsed like the script itself, never executed."""

import ast
import warnings
from pathlib import Path
from typing import Any

from ....common import TooLargeError, read_file
from .values import ScriptModule

MAX_BYTES = 3 * 2**16
"""A script of this size is read within a second, whatever it contains; transformers' modeling files are smaller."""
_MAX_MODULES = 24


class Imports:
    """The modules of one folder, each followed once.

    Args:
        folder: the script's folder; None: nothing is imported.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._modules: dict[Path, ScriptModule | None] = {}
        self._trees: dict[Path, ast.Module] = {}

    def again(self) -> "Imports":
        """Return the same folder for another reading of the script, with the files that are parsed already."""
        other = Imports(self._folder)
        other._trees = self._trees
        return other

    def load(self, run: Any, name: str, *, level: int = 0) -> ScriptModule | None:
        """Return a module of the folder after following it; None if it is a library's.

        Args:
            run: the interpreter.
            name: its dotted name.
            level: leading dots of a relative import.
        """
        path = self._find(name, run.module.path if level else None, level)
        if path is None or (path not in self._modules and len(self._modules) >= _MAX_MODULES):
            return None
        if path not in self._modules:
            module = ScriptModule(path.name, path)
            self._modules[path] = module  # before it is followed, as modules may import each other
            tree = self._parse(path)
            if tree is None:
                self._modules[path] = None
            else:
                run.run_module(tree, module)
        return self._modules[path]

    def _find(self, name: str, importer: Path | None, level: int) -> Path | None:
        if self._folder is None or (not name and not level):
            return None
        start = self._folder
        if level and importer is not None:
            start = importer.parent
            for _ in range(level - 1):
                start = start.parent
        if not start.is_relative_to(self._folder):
            return None
        parts = [part for part in name.split(".") if part]
        if not all(part.isidentifier() for part in parts):
            return None
        base = start.joinpath(*parts)
        for path in (base.with_name(f"{base.name}.py") if parts else None, base / "__init__.py"):
            if path is not None and path.is_file() and path.resolve().is_relative_to(self._folder.resolve()):
                return path
        return None

    def _parse(self, path: Path) -> ast.Module | None:
        if path not in self._trees:
            try:
                self._trees[path] = parse(read_file(path, MAX_BYTES), path)
            except (OSError, TooLargeError, SyntaxError, ValueError, RecursionError, MemoryError):
                return None
        return self._trees[path]


def parse(text: bytes | str, path: Path) -> ast.Module:
    """Return a module's syntax tree, without the script's own warnings on the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, filename=str(path))
