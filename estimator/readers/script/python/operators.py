"""Operators on values of a script: arithmetic on numbers and texts, comparisons, truth; unknown stays unknown."""

import ast
import operator
from collections.abc import Callable
from typing import Any

from ...source import parse_digits
from .values import PLAIN, UNKNOWN, Attribute, External, Function, Method, Thing, Unknown

MAX_LENGTH = 100_000
"""Items of a list and characters of a text that are kept; longer ones are unknown."""
_MAX_NUMBER = 10**40
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
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
_CONTAINERS = (list, tuple, set, frozenset, dict)


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None: unknown."""
    if isinstance(value, Unknown):
        return None
    if isinstance(value, (*PLAIN, *_CONTAINERS)):
        return bool(value)
    if isinstance(value, External | Attribute):
        return None
    if isinstance(value, Thing):
        items = value.elements()
        return None if items is None and value.truth_is_length else (items is None or bool(items))
    return True


def binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return the result of an arithmetic operator."""
    if isinstance(left, str) != isinstance(right, str) and kind in (ast.Mult, ast.FloorDiv, ast.Sub, ast.Div):
        left, right = as_number(left), as_number(right)
    apply = _ARITHMETIC.get(kind)
    if apply is None or not _is_safe(kind, left, right):
        return UNKNOWN
    try:
        return _bounded(apply(left, right))
    except (TypeError, ValueError, ArithmeticError, KeyError):
        return UNKNOWN


def compare(kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Return the result of a comparison; UNKNOWN where a part of it is."""
    if kind in (ast.Is, ast.IsNot):
        same = _is_same(left, right)
        return same if same is UNKNOWN or kind is ast.Is else not same
    apply = _COMPARISONS.get(kind)
    if apply is None or not _is_known(left) or not _is_known(right):
        return _compare_unknown(kind, left, right)
    if type(left) is not type(right) and isinstance(left, str | int) and isinstance(right, str | int):
        left, right = as_number(left), as_number(right)
    try:
        return bool(apply(left, right))
    except (TypeError, ValueError, RecursionError):
        return UNKNOWN


def as_number(value: Any) -> Any:
    """Return a number for a text of digits, as options are texts on the command line."""
    known = parse_digits(value) if isinstance(value, str) else None
    return value if known is None else known


def _compare_unknown(kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Compare where a part is unknown: an item may still be found in a list that has it."""
    has = getattr(right, "has", None) if kind in (ast.In, ast.NotIn) and isinstance(right, Thing) else None
    if has is not None:
        found = has(left)
        return found is (kind is ast.In) if isinstance(found, bool) else UNKNOWN
    if kind in (ast.In, ast.NotIn) and isinstance(left, PLAIN) and isinstance(right, list | tuple | set | frozenset):
        if any(isinstance(item, PLAIN) and item == left for item in right):
            return kind is ast.In
        return UNKNOWN
    if kind in (ast.Eq, ast.NotEq) and isinstance(left, External) and isinstance(right, External):
        return (left.path == right.path) is (kind is ast.Eq)
    if kind in (ast.Eq, ast.NotEq) and isinstance(left, Thing) and isinstance(right, Thing):
        return (left is right) is (kind is ast.Eq)
    return UNKNOWN


def _is_same(left: Any, right: Any) -> Any:
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if isinstance(left, PLAIN) and isinstance(right, PLAIN):
        return type(left) is type(right) and left == right
    if isinstance(left, External) and isinstance(right, External):
        return left.path == right.path
    if isinstance(left, Attribute | External) or isinstance(right, Attribute | External):
        return UNKNOWN
    return left is right


def _is_known(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (*PLAIN, Function, Method)):
        return True
    if isinstance(value, dict):
        return depth < 4 and all(_is_known(key, depth + 1) for key in value)
    return isinstance(value, _CONTAINERS) and depth < 4 and all(_is_known(item, depth + 1) for item in value)


def _is_safe(kind: type[ast.operator], left: Any, right: Any) -> bool:
    """Return False for what could take long or much memory, and for values that have no arithmetic here."""
    number = int | float
    if isinstance(left, number) and isinstance(right, number):
        if kind is ast.Pow:
            return abs(right) < 128 and abs(left) < 10**6
        return abs(left) < _MAX_NUMBER and abs(right) < _MAX_NUMBER
    sizes = [len(side) for side in (left, right) if isinstance(side, str | bytes | list | tuple | set | dict)]
    if kind is ast.Mult and len(sizes) == 1:
        times = right if isinstance(right, int) else left
        return isinstance(times, int) and sizes[0] * max(times, 0) <= MAX_LENGTH
    if kind is ast.Mod and isinstance(left, str | bytes):
        return False  # a width in a format could be any number
    return kind in (ast.Add, ast.BitOr, ast.BitAnd, ast.Sub) and len(sizes) == 2 and sum(sizes) <= MAX_LENGTH


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        return UNKNOWN
    return value
