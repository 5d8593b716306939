"""Runs the cells of a notebook in one namespace, as Jupyter does with "Run All", without IPython."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_cells(words: Sequence[str], cells: Sequence[tuple[int, str]]) -> None:
    """Run cells in the notebook's folder; the file name of their lines is ``train.ipynb cell 3``.

    Args:
        words: the notebook and its arguments.
        cells: the number and the Python code of each.
    """
    folder = Path(words[0]).resolve().parent
    os.chdir(folder)
    sys.argv = list(words)
    sys.path.insert(0, str(folder))
    main = sys.modules["__main__"] = ModuleType("__main__")
    shown: dict[int, Any] = {}  # IPython keeps what cells show, and the memory with it
    vars(main).update(Out=shown, display=_nothing, get_ipython=_IPython)
    for count, (number, text) in enumerate(cells, start=1):
        value = _run_cell(text, f"{words[0]} cell {number}", vars(main))
        if value is not None and not text.rstrip().endswith(";"):
            shown[count] = vars(main)["_"] = value


def _run_cell(text: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of the expression that it ends with, else None."""
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    tree = ast.parse(text, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)  # noqa: S102 - the user's own program
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace) if isinstance(last, ast.Expr) else None  # noqa: S307


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _IPython:
    """Stands for IPython's shell, whose magics and commands do nothing."""

    config: dict[str, Any] = {}  # noqa: RUF012 - programs look for entries

    def __getattr__(self, name: str) -> Any:
        return _nothing
