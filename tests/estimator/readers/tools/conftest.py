"""A launch line is read in the test's folder."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., JobReading]:
    """Return a function that reads a launch line in the test's folder, with a given environment."""

    def read_line(line: str, **environ: str) -> JobReading:
        return read_launch(shlex.split(line), environ=environ, cwd=tmp_path, versions={"transformers": "5.2.0"})

    return read_line
