import os
from pathlib import Path

import pytest

from vramtop.estimator.readers.source.filesystem_view import FilesystemView


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return another root folder, with links as they are made inside it."""
    root = tmp_path / "root"
    (root / "data" / "llama").mkdir(parents=True)
    (root / "data" / "llama" / "config.json").write_text("{}")
    (root / "jobs").mkdir()
    (root / "jobs" / "model").symlink_to("/data/llama")
    (root / "jobs" / "again").symlink_to("model/../llama")
    (root / "jobs" / "out").symlink_to("../../../../../data")
    (root / "jobs" / "loop").symlink_to("loop")
    return root


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model", "data/llama"),
        ("/jobs/model/config.json", "data/llama/config.json"),
        ("again/config.json", "data/llama/config.json"),
        ("out/llama", "data/llama"),
        ("nothing/here", "jobs/nothing/here"),
    ],
)
def test_links_below_another_root_lead_to_its_own_folders(root: Path, text: str, found: str) -> None:
    assert FilesystemView(cwd=root / "jobs", root=root).resolve(text) == root / found


def test_a_link_to_itself_is_not_followed_forever(root: Path) -> None:
    assert not os.access(FilesystemView(cwd=root / "jobs", root=root).resolve("loop/x"), os.F_OK)


def test_links_of_the_own_root_are_unchanged(root: Path) -> None:
    assert FilesystemView(cwd=root / "jobs").resolve("model") == root / "jobs" / "model"


def test_impossible_characters_of_a_path_are_replaced(tmp_path: Path) -> None:
    view = FilesystemView(cwd=tmp_path)
    assert view.resolve("a\0b") == tmp_path / "ab"
    assert view.resolve("\ud800") == tmp_path / "?"
    assert view.resolve("\udcff") == tmp_path / "\udcff"  # a file name that is not UTF-8, as os.fsdecode spells it
