"""Modules in the script's folder that it imports: parsed like the script itself, never executed."""

import ast
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....common.untrusted_files import TooLargeError, read_file
from .values import ScriptModule

MAX_BYTES = 3 * 2**16
"""A script of this size is read within a second, whatever it contains; transformers' modeling files are smaller."""
_MAX_MODULES = 24
LIBRARIES = {
    *("torch", "torchvision", "transformers", "accelerate", "peft", "trl", "datasets", "diffusers", "deepspeed"),
    *("bitsandbytes", "sentence_transformers", "unsloth", "lightning", "pytorch_lightning", "optimum", "evaluate"),
}
"""Libraries whose functions are known by name: those of a script that lies in a library's own repository too."""


class Imports:
    """The modules of a few folders, each followed once.

    Args:
        folders: the script's folder, and the one it is started in; the first that has a module counts.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._modules: dict[Path, ScriptModule | None] = {}
        self._trees: dict[Path, ast.Module] = {}

    def again(self) -> "Imports":
        """Return the same folder for another reading of the script, with the files that are parsed already."""
        other = Imports(self._folders)
        other._trees = self._trees
        return other

    def trees(self) -> list[ast.Module]:
        """Return the files that were parsed."""
        return list(self._trees.values())

    def names(self) -> set[str]:
        """Return the names of the modules that were followed."""
        found = (module.scope.names.get("__name__") for module in self._modules.values() if module is not None)
        return {name for name in found if isinstance(name, str)}

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
            module.scope.names["__name__"] = name
            self._modules[path] = module  # before it is followed, as modules may import each other
            tree = self._parse(path)
            if tree is None:
                self._modules[path] = None
            else:
                run.run_module(tree, module)
        return self._modules[path]

    def _find(self, name: str, importer: Path | None, level: int) -> Path | None:
        root = name.partition(".")[0]
        if (not name and not level) or (not level and (root in sys.stdlib_module_names or root in LIBRARIES)):
            return None
        starts = self._folders
        if level and importer is not None:
            start = importer.parent
            for _ in range(level - 1):
                start = start.parent
            starts = (start,)
        parts = [part for part in name.split(".") if part]
        if not all(part.isidentifier() for part in parts):
            return None
        for start in starts:
            base = start.joinpath(*parts)
            for path in (base.with_name(f"{base.name}.py") if parts else None, base / "__init__.py"):
                if path is not None and path.is_file() and self._is_inside(path):
                    return path
        return None

    def _is_inside(self, path: Path) -> bool:
        real = path.resolve()
        return any(path.is_relative_to(each) and real.is_relative_to(each.resolve()) for each in self._folders)

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
