"""The versions that the tests' figures were made with, as requirements/ has them for the newest Python."""

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).parents[1] / "requirements"


def pinned(name: str) -> list[Requirement]:
    """Return the packages in a file of requirements/, each with its version. Of two, the last is for newer Pythons."""
    found = re.findall(r"^([^\s#][^\\\n]*)", (REQUIREMENTS / name).read_text(), re.MULTILINE)
    return [Requirement(line) for line in found]


PINNED = {each.name: str(each.specifier).removeprefix("==") for each in [*pinned("tests.txt"), *pinned("torch.txt")]}


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
