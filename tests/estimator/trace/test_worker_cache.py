"""What is computed beside worker answers is kept on disk, as long as the code that computed it is the same."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from vramtop.estimator.trace.worker_pool import kept_result

BEFORE, LATER = 0.0, float("inf")


class Figure(msgspec.Struct):
    """A result."""

    size: int


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "code.py"
    file.write_text("size = 1")
    return file


def kept(key: object, code: Path, *, loaded: float = LATER) -> Callable[[int], int]:
    """Return what is kept under a key, or else the figure given."""
    return lambda size: kept_result("tests", key, lambda: Figure(size), Figure, code=([code], loaded)).size


def test_a_result_is_computed_once_per_key(code: Path) -> None:
    assert [kept("job", code)(1), kept("job", code)(2), kept("other job", code)(3)] == [1, 1, 3]


def test_other_code_computes_it_again(code: Path) -> None:
    assert kept("job", code)(1) == 1
    code.write_text("size = 2")
    assert kept("job", code)(2) == 2
    code.write_text("size = 1")
    assert kept("job", code)(3) == 1


def test_code_that_changed_after_this_process_loaded_it_neither_reads_nor_keeps(code: Path, tmp_path: Path) -> None:
    assert kept("job", code, loaded=BEFORE)(1) == 1
    assert not (tmp_path / "cache").exists()
    assert kept("job", code)(2) == 2
    assert kept("job", code, loaded=code.stat().st_ctime)(3) == 3
    code.unlink()
    assert kept("job", code)(4) == 4


def test_a_broken_file_is_computed_again(code: Path, tmp_path: Path) -> None:
    kept("job", code)(1)
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text('{"format": 1, "answer": {"size": "many"}}')
    assert kept("job", code)(2) == 2
    assert kept("job", code)(3) == 2
