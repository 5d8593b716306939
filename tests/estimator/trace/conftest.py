"""A program to rehearse."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def program(tmp_path, monkeypatch, python_with_torch: str):
    """Return a function that writes a program and returns its path; the tests run in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", python_with_torch)

    def write(text: str, name: str = "train.py") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write
