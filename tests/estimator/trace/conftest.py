"""A program to rehearse."""

from pathlib import Path

import pytest


@pytest.fixture
def program(in_folder: Path, quick_rehearsals: None):
    """Return a function that writes a program and returns its path; the tests run in its folder."""

    def write(text: str, name: str = "train.py") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write
