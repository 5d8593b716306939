"""What is computed beside worker answers is kept on disk, as long as the code that computed it is the same."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from vramtop.estimator.trace.answer_cache import kept_result

pytestmark = pytest.mark.usefixtures("own_cache")

NOBODY = 65534
BEFORE, LATER = 0.0, float("inf")


class Figure(msgspec.Struct):
    """A result."""

    size: int


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


@pytest.mark.parametrize("whose", ["anyone's folder", "another user's folder", "another user's file", "their link"])
def test_an_answer_that_another_user_may_have_written_is_neither_believed_nor_replaced(code, tmp_path, whose) -> None:
    kept("job", code)(1)
    (file,) = (tmp_path / "cache").rglob("*.json")
    if whose == "anyone's folder":
        (tmp_path / "cache").chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root can give files away")
    elif whose == "their link":
        file.symlink_to(file.rename(tmp_path / "planted.json"))
        os.lchown(file, NOBODY, NOBODY)
    else:
        os.chown(tmp_path / "cache" if "folder" in whose else file, NOBODY, NOBODY)
    before = file.read_bytes()
    assert [kept("job", code)(2), kept("job", code)(3)] == [2, 3]
    assert file.read_bytes() == before
    if "folder" in whose:
        assert [kept("other job", code)(4), kept("other job", code)(5)] == [4, 5]
        assert [*(tmp_path / "cache").rglob("*.json")] == [file]


def test_without_a_home_nothing_is_kept(code: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(name: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("vramtop.estimator.trace.answer_cache.user_cache_dir", no_home)
    assert [kept("job", code)(1), kept("job", code)(2)] == [1, 2]
    assert [*in_folder.iterdir()] == [code]


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_what_is_no_answer_in_its_place_is_computed_again(code: Path, tmp_path: Path, kind: str) -> None:
    kept("job", code)(1)
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as opened:
            opened.truncate(10 << 30)
    assert kept("job", code)(2) == 2


def test_one_module_reads_the_cache() -> None:
    root = Path(__file__).parents[3]
    files = [file for package in ("estimator", "monitor", "tui") for file in (root / package).rglob("*.py")]
    found = [str(file.relative_to(root)) for file in files if "user_cache_dir" in file.read_text()]
    assert found == ["estimator/trace/answer_cache.py"]
