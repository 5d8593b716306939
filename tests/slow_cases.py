"""Cases of a parametrized test of which the quick tests run a sample."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick_every(step: int, cases: Iterable[Any], *, start: int = 0) -> list[Any]:
    """Return the cases; all but every ``step``-th from ``start`` are marked slow. Tuples are several arguments."""
    return [
        case if at % step == start % step
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for at, case in enumerate(cases)
    ]  # fmt: skip
