"""The versions that the tests' figures were made with, as tests/constraints.txt names them for the newest Python."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_LINES = [line for line in (Path(__file__).parent / "constraints.txt").read_text().splitlines() if "==" in line]
PINNED = {each.name: str(each.specifier).removeprefix("==") for each in map(Requirement, reversed(_LINES))}
"""By package. Where there are two lines, the first is for newer Pythons and the second for older ones."""


def other_version(names: Sequence[str]) -> str | None:
    """Return a sentence about the first package that is not the one that the figures were made with; None: all are."""
    for name in names:
        try:
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            installed = "none"
        if installed != PINNED[name]:
            return f"with {name} {PINNED[name]}, not {installed}"
    return None


_OTHER_TRANSFORMERS = other_version(["transformers"])
needs_pinned_transformers = pytest.mark.skipif(
    _OTHER_TRANSFORMERS is not None, reason=f"plans and tasks were read {_OTHER_TRANSFORMERS}"
)
