"""The files that CONTRIBUTING.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_files_that_it_names_exist() -> None:
    """A name without a folder is that of some module or file of a room."""
    rooms = ("estimator", "monitor", "tui", "docs", "tests")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(rf"`((?:{'|'.join(rooms)})/[\w./]+)`", text))
    assert len(paths) > 15
    assert not {path for path in paths if not (ROOT / path).exists()}
    names = set(re.findall(r"`(\w+\.py)`", text))
    assert not {name for name in names if not any(next((ROOT / room).rglob(name), None) for room in rooms)}
