"""Finds out whether a program would go on: after an error, or with one answer to a question and not with the other.

The handlers of the ``try`` statements around a line are read. One that names ``torch.OutOfMemoryError``, or tests what
an error says about memory, and does not always end the program or raise again, catches it; one for all errors that only
logs does not count.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ALL = frozenset(("Exception", "BaseException"))
_SAYS = re.compile(r"out.?of.?memory|(\b|_)oom(\b|_)|reduce_batch_size", re.IGNORECASE)
_ENDS = frozenset(("exit", "_exit", "abort", "quit"))
_ASKS = frozenset((importlib.util.__file__, "<frozen importlib.util>"))
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_REDUCES = frozenset(("all", "any", "sum", "prod", "min", "max", "amin", "amax", "mean", "argmin", "argmax"))
"""Reductions. The part of a condition that calls one reads a value from the GPU; other parts may be the host's."""
_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))


def is_caught(frames: Iterator[Any]) -> bool:
    """Return True if one of these frames catches ``torch.OutOfMemoryError``, the innermost first."""
    return any(_is_guarded(frame, _catches_memory) for frame in frames)


def goes_on_without(finder: Any, frames: Iterator[Any]) -> bool:
    """Return True if an import may fail, or something only asks whether there is such a module.

    Args:
        finder: the frame that called a finder of modules.
        frames: those of the program that led there.
    """
    while finder is not None and "importlib" in finder.f_code.co_filename:
        if finder.f_code.co_filename in _ASKS:
            return True
        finder = finder.f_back
    return any(_is_guarded(frame, _catches_import) for frame in frames)


def answer_to_go_on(frame: Any) -> bool | None:
    """Return the answer with which the statement at a frame's line does not end the program; None: both may do."""
    return _answers(frame.f_code.co_filename).get(frame.f_lineno)


def leaves_if_true(frame: Any) -> bool:
    """Return True if the condition at a frame's line leads to ``break``, ``return`` or ``raise``, or is a loop's."""
    return frame.f_lineno in _leaving(frame.f_code.co_filename)


@functools.lru_cache(maxsize=4096)
def _leaving(file: str) -> frozenset[int]:
    """Return the lines of conditions of ``while``, and of ``if`` before ``break``, ``return`` or ``raise``."""
    conditions = (
        each.test
        for each in ast.walk(_tree(file))
        if isinstance(each, ast.While) or (isinstance(each, ast.If) and _way_out(each.body) is not None)
    )
    return frozenset(line for each in conditions for line in range(each.lineno, (each.end_lineno or 0) + 1))


@functools.lru_cache(maxsize=4096)
def _answers(file: str) -> dict[int, bool]:
    """Return by line what the conditions of assertions have to be, and those of ``if`` before what ends a program."""
    answers: dict[int, bool] = {}
    of_gpu: dict[int, bool] = {}
    for each in ast.walk(_tree(file)):
        if isinstance(each, ast.Assert):
            wanted = True
        elif isinstance(each, ast.If) and _way_out(each.body):
            wanted = False
        else:
            continue
        for part in each.test.values if isinstance(each.test, ast.BoolOp) else [each.test]:
            is_denied = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not)
            lines = dict.fromkeys(range(part.lineno, (part.end_lineno or 0) + 1), wanted != is_denied)
            if any(_name(each.func) in _REDUCES for each in ast.walk(part) if isinstance(each, ast.Call)):
                of_gpu.update(lines)
            elif not isinstance(part, ast.Compare) or all(isinstance(each, _ORDER) for each in part.ops):
                answers.update(lines)
    return {**answers, **of_gpu}


def _is_guarded(frame: Any, catches: Callable[[ast.ExceptHandler], bool]) -> bool:
    return any(first <= frame.f_lineno <= last for first, last in _guarded(frame.f_code.co_filename, catches))


@functools.lru_cache(maxsize=4096)
def _guarded(file: str, catches: Callable[[ast.ExceptHandler], bool]) -> tuple[tuple[int, int], ...]:
    """Return the first and the last lines of what a file's ``try`` statements guard against an error."""
    return tuple(
        (each.body[0].lineno, each.body[-1].end_lineno or 0)
        for each in ast.walk(_tree(file))
        if isinstance(each, _TRY) and any(catches(handler) for handler in each.handlers)
    )


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _catches_memory(handler: ast.ExceptHandler) -> bool:
    kinds = _kinds(handler)
    is_told = "OutOfMemoryError" in kinds or (bool(kinds & {"RuntimeError", *_ALL}) and _says(handler))
    return is_told and not _way_out(handler.body)


def _catches_import(handler: ast.ExceptHandler) -> bool:
    return bool(_kinds(handler) & {"ImportError", "ModuleNotFoundError", *_ALL}) and not _way_out(handler.body)


def _kinds(handler: ast.ExceptHandler) -> set[str]:
    return {_name(each) for each in ast.walk(handler.type)} if handler.type else {"BaseException"}


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
