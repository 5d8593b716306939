"""Folders are moved where the kernel refuses it, as ``mv`` moves them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramtop.estimator.worker.rehearsal import moving


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder in another file system than ``tmp_path``; moves between them are installed."""
    memory = Path("/dev/shm")  # noqa: S108 - a file system, of which the folder below is new
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, getattr(os, name))  # as they were, after the test
    moving.install()
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def checkpoint(folder: Path) -> Path:
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1" / "weights").write_text("x")
    (folder / "latest").symlink_to("step-1")
    return folder


@pytest.mark.parametrize("move", ["rename", "replace"])
def test_a_folder_moves_to_another_file_system_with_what_is_in_it(elsewhere: Path, tmp_path: Path, move: str) -> None:
    source, target = checkpoint(tmp_path / "run"), elsewhere / "run"
    target.mkdir()  # an empty one may be replaced
    getattr(os, move)(source, target)
    assert not source.exists()
    assert (target / "latest").is_symlink()
    assert (target / "latest" / "weights").read_text() == "x"


def test_a_folder_with_files_is_not_replaced_and_a_file_moves(elsewhere: Path, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "run")
    target = checkpoint(elsewhere / "run")
    with pytest.raises(OSError, match="not empty"):
        source.rename(target)
    (elsewhere / "weights").write_text("older")
    (source / "step-1" / "weights").rename(elsewhere / "weights")
    assert (elsewhere / "weights").read_text() == "x"
    assert not (source / "step-1" / "weights").exists()
    assert {each.name for each in elsewhere.iterdir()} == {"run", "weights"}
