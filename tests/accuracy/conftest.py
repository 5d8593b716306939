"""Make this folder importable: its modules also run as programs, so they import one another by plain name."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from predictions import Result, predict_all


@pytest.fixture(scope="session")
def results() -> Sequence[Result]:
    """Return the closed form's predictions of all rows of the accuracy table."""
    return predict_all("formula")[0]
