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


@pytest.mark.parametrize("guide", [GUIDE, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_the_files_that_it_names_exist(guide: Path) -> None:
    """A name without a folder is that of some module or file of a room."""
    rooms = ("estimator", "monitor", "tui", "docs", "tests")
    text = guide.read_text()
    paths = set(re.findall(rf"`((?:{'|'.join(rooms)})/[\w./]+)`", text))
    assert len(paths) > 15
    assert not {path for path in paths if not (ROOT / path).exists()}
    names = set(re.findall(r"`(\w+\.py)`", text))
    assert not {name for name in names if not any(next((ROOT / room).rglob(name), None) for room in rooms)}
