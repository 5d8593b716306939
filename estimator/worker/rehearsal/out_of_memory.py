"""Finds out whether a program would go on after ``torch.OutOfMemoryError``: it tries sizes, or leaves a batch out.

The handlers of the ``try`` statements around an allocation are read: one that names the error, or tests what it says,
and does not always end the program or raise again, catches it. One for all errors that only logs does not count.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ERROR = "OutOfMemoryError"
_WIDER = frozenset(("RuntimeError", "Exception", "BaseException"))
_SAYS = re.compile(r"out.?of.?memory|(\b|_)oom(\b|_)|reduce_batch_size", re.IGNORECASE)
_ENDS = frozenset(("exit", "_exit", "abort", "quit"))
_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))


def is_caught(frames: Iterator[Any]) -> bool:
    """Return True if one of these frames, the innermost first, is in a ``try`` that catches the error."""
    return any(
        first <= frame.f_lineno <= last for frame in frames for first, last in _catching(frame.f_code.co_filename)
    )


@functools.lru_cache(maxsize=4096)
def _catching(file: str) -> tuple[tuple[int, int], ...]:
    """Return the first and the last lines of what a file's ``try`` statements guard against the error."""
    text = "".join(linecache.getlines(file))
    if not _SAYS.search(text):
        return ()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (each.body[0].lineno, each.body[-1].end_lineno or 0)
        for each in ast.walk(tree)
        if isinstance(each, _TRY) and any(_catches(handler) for handler in each.handlers)
    )


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = {_name(each) for each in ast.walk(handler.type)} if handler.type else {"BaseException"}
    is_told = _ERROR in kinds or (bool(kinds & _WIDER) and _says(handler))
    return is_told and not _way_out(handler.body)


def _says(node: ast.AST) -> bool:
    """Return True if a name or a text in the code speaks of memory that ran out."""
    texts = (each.value if isinstance(each, ast.Constant) else _name(each) for each in ast.walk(node))
    return any(isinstance(text, str) and _SAYS.search(text) for text in texts)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _way_out(body: Sequence[ast.stmt]) -> bool | None:
    """Return True if statements that are given the error raise again or exit, False if they go on elsewhere."""
    for each in body:
        if isinstance(each, ast.Raise) or (
            isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and _name(each.value.func) in _ENDS
        ):
            return True
        if isinstance(each, (ast.Return, ast.Continue, ast.Break)):
            return False
        if isinstance(each, ast.If):
            ways = {_way_out(branch) for branch in _branches(each)}
            if False in ways or ways == {True}:
                return False not in ways
    return None


def _branches(condition: ast.If) -> list[list[ast.stmt]]:
    """Return the branches that may be taken where memory has run out."""
    if not _says(condition.test):
        return [condition.body, condition.orelse]
    is_denied = any(isinstance(each, (ast.Not, ast.NotIn)) for each in ast.walk(condition.test))
    return [condition.orelse if is_denied else condition.body]
