"""Cases of a parametrized test of which most runs take a sample."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_EXHAUSTIVE = (pytest.mark.slow, pytest.mark.exhaustive)


def quick_every(step: int, cases: Iterable[Any], *, start: int = 0, exhaustive: bool = False) -> list[Any]:
    """Return the cases; all but every ``step``-th from ``start`` are marked slow. Tuples are several arguments.

    With ``exhaustive``, the others are for ``make test-all`` only.
    """
    return _sampled(step, cases, start, _EXHAUSTIVE if exhaustive else (pytest.mark.slow,))


def first_quick(values: Sequence[Any]) -> list[Any]:
    """Return the values of one argument; all but the first are marked slow."""
    return [values[0], *(pytest.param(each, marks=pytest.mark.slow) for each in values[1:])]


def slow_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a slow test; all but every ``step``-th are for ``make test-all`` only."""
    return _sampled(step, cases, 0, _EXHAUSTIVE)


def _sampled(step: int, cases: Iterable[Any], start: int, marks: tuple[Any, ...]) -> list[Any]:
    return [
        case
        if at % step == start % step
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)
        for at, case in enumerate(cases)
    ]
