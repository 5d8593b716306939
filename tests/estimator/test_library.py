"""The estimator as a library: the examples of its documentation run unchanged."""

import contextlib
import doctest
import io
import pydoc
import re
from pathlib import Path

import vramtop.estimator as library

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_of_the_package_run() -> None:
    found = doctest.testmod(library)
    assert found.failed == 0
    assert found.attempted >= 5


def test_the_readme_snippet_runs_and_prints_a_table() -> None:
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    snippet = next(text for text in snippets if "estimate(" in text)
    said = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(said):
        exec(snippet, names)  # noqa: S102 - the README is ours
    budget = names["budget"]
    assert isinstance(budget, library.Budget)
    assert said.getvalue().rstrip() == str(budget)
    assert "optimizer" in said.getvalue()


def test_help_shows_the_public_names_with_their_docstrings() -> None:
    text = pydoc.plain(pydoc.render_doc(library))
    assert dir(library) == sorted(library.__all__)
    assert all(name in text for name in library.__all__)
    assert "Predict the memory of a job." in text
    assert "Sequences per rank" in text or "micro_batch" in text
