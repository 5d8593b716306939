"""The estimator as a library: the examples of its documentation run unchanged."""

import doctest
import pydoc

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
