"""The guide for contributors: its examples stand in the files that they are said to be from, and its paths exist."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "contributing" / "how-to-add.md"
EXAMPLES = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
SUBJECTS = (
    "A model family",
    "A configuration reader",
    "A preflight check",
    "A card",
    "A fault",
    "An optimizer",
    "A screen",
)


def lines_of(text: str) -> list[str]:
    """The lines of a text, without indentation and without the comma after an entry of a table."""
    return [line.strip().removesuffix(",") for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(("path", "code"), EXAMPLES, ids=[path for path, _ in EXAMPLES])
def test_an_example_stands_in_its_file(path: str, code: str) -> None:
    """Line by line, without what it is indented by there."""
    source, example = lines_of((ROOT / path).read_text()), lines_of(textwrap.dedent(code))
    assert any(source[at : at + len(example)] == example for at in range(len(source) - len(example) + 1))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_subject_has_an_example_and_a_test(subject: str) -> None:
    section = re.search(rf"^## {subject}$(.*?)(?=^## |\Z)", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    assert 'title="' in section[1]
    assert "Proof:" in section[1]


def test_the_files_that_it_names_exist() -> None:
    """Names without a folder are those of the section's room, and are not looked for."""
    named = set(re.findall(r"`((?:estimator|monitor|tui|tests)/[\w./]+)`", GUIDE.read_text()))
    assert len(named) > 15
    assert not {name for name in named if not (ROOT / name).exists()}
