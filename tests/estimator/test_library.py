"""The estimator as a library: the examples of its documentation run unchanged."""

import doctest
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import vramtop
import vramtop.estimator as library


def test_the_examples_of_the_package_run() -> None:
    found = doctest.testmod(library)
    assert found.failed == 0
    assert found.attempted >= 5


def test_help_shows_the_public_names_with_their_docstrings() -> None:
    text = pydoc.plain(pydoc.render_doc(library))
    assert dir(library) == sorted(library.__all__)
    assert all(name in text for name in library.__all__)
    assert "Predict the memory of a job." in text
    assert "Sequences per rank" in text or "micro_batch" in text


@pytest.mark.parametrize("name", library.__all__)
def test_public_names_are_what_they_name(name: str) -> None:
    """A module of a name would hide the function in it."""
    found = getattr(library, name)
    assert found.__name__ == name
    assert getattr(vramtop, name) is found


def test_a_fresh_interpreter_finds_the_names_in_the_package(tmp_path: Path) -> None:
    asked = "import vramtop; print(vramtop.estimate.__name__, len(dir(vramtop)) > 10)"
    told = subprocess.check_output([sys.executable, "-c", asked], cwd=tmp_path, text=True)
    assert told.split() == ["estimate", "True"]
