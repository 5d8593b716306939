"""Runs the cells of a notebook in one namespace, as Jupyter does with "Run All", without IPython."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


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
    vars(main).update(Out=shown, display=_nothing, get_ipython=lambda: _IPython(vars(main)))
    loop = asyncio.new_event_loop()
    for count, (number, text) in enumerate(cells, start=1):
        value = _run_cell(text, f"{words[0]} cell {number}", vars(main), loop)
        if value is not None and not text.rstrip().endswith(";"):
            shown[count] = vars(main)["_"] = value


def _run_cell(text: str, name: str, namespace: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Run a cell, which may await; return the value of the expression that it ends with, else None."""

    def run(part: ast.Module | ast.Expression, mode: str) -> Any:
        code = compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        found = eval(code, namespace)  # noqa: S307 - the user's own program
        return loop.run_until_complete(found) if code.co_flags & inspect.CO_COROUTINE else found

    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    tree = ast.parse(text, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    run(tree, "exec")
    return run(ast.Expression(last.value), "eval") if isinstance(last, ast.Expr) else None


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _IPython:
    """Stands for IPython's shell, whose magics and commands do nothing but for ``%run FILE.py ARGS``."""

    config: dict[str, Any] = {}  # noqa: RUF012 - programs look for entries

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace

    def run_line_magic(self, name: str, line: str, *_: Any) -> None:
        if name == "run":
            words, arguments = sys.argv, shlex.split(line)
            sys.argv = arguments
            try:
                self._namespace.update(runpy.run_path(arguments[0], run_name="__main__"))
            finally:
                sys.argv = words

    def __getattr__(self, name: str) -> Any:
        return _nothing
