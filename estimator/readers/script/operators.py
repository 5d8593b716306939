"""Operators on a script's values: arithmetic on numbers and texts, comparisons, truth; unknown stays unknown."""

import ast
import operator
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from ..source.settings import parse_digits
from .values import MAX_LENGTH, PLAIN, UNKNOWN, Attribute, Name, Unknown

_MAX_NUMBER = 10**40


def as_number(value: Any) -> Any:
    """Return a number for a text of digits, as options are texts on the command line."""
    known = parse_digits(value) if isinstance(value, str) else None
    return value if known is None else known


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_IDENTITY = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None: unknown."""
    if isinstance(value, (*PLAIN, list, tuple, set, frozenset, dict)):
        return bool(value)
    return None if isinstance(value, Unknown | Name | Attribute) else True


def binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return the result of arithmetic on numbers, or of joining two texts or lists; UNKNOWN for anything else."""
    if kind is ast.Add and type(left) is type(right) and isinstance(left, str | list | tuple):
        return left + right if len(left) + len(right) <= MAX_LENGTH else UNKNOWN
    if kind is ast.Div and isinstance(left, str) and isinstance(right, str):  # of paths
        return str(PurePath(left, right))
    left, right, apply = as_number(left), as_number(right), _ARITHMETIC.get(kind)
    limit = 128 if kind is ast.Pow else _MAX_NUMBER
    if apply is None or not all(isinstance(side, int | float) and abs(side) < limit for side in (left, right)):
        return UNKNOWN
    try:
        found = apply(left, right)
    except (TypeError, ValueError, ArithmeticError):
        return UNKNOWN
    return found if isinstance(found, int | float) and abs(found) < _MAX_NUMBER else UNKNOWN


def compare(kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Return the result of a comparison of plain data, of names, or with None; UNKNOWN for any other."""
    sides = (left, right)
    names = sum(isinstance(side, Name) for side in sides)
    if names == 1 or any(isinstance(side, Unknown | Attribute) for side in sides):
        return UNKNOWN
    if kind in (ast.Is, ast.IsNot) or not all(map(_is_data, sides)):
        is_same = left is right or (type(left) is type(right) and left == right)
        return is_same is (kind in (ast.Is, ast.Eq)) if kind in _IDENTITY else UNKNOWN
    if all(isinstance(side, str | int) for side in sides) and type(left) is not type(right):
        left, right = as_number(left), as_number(right)
    try:
        return bool(_COMPARISONS[kind](left, right))
    except (KeyError, TypeError):
        return UNKNOWN


def _is_data(value: Any) -> bool:
    """Return True for a number, a text, None, or a list or table of them."""
    items = value if isinstance(value, list | tuple | dict) else [value]
    return all(isinstance(item, PLAIN) for item in items)
