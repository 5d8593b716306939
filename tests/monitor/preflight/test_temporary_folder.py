"""The folder for temporary files."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from vramtop.monitor.preflight.checks.folders import check_temporary_folder
from vramtop.monitor.preflight.machine import Machine


def test_the_first_that_is_set_is_taken_as_python_does(make_context, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    found = check_temporary_folder(make_context(environ={"TMPDIR": str(tmp_path / "first"), "TEMP": "/none"}))
    assert (found.status, found.found) == ("pass", f"{tmp_path / 'first'} can be written to")
    assert list((tmp_path / "first").iterdir()) == []
    assert check_temporary_folder(make_context(environ={"TMPDIR": ""})).found.endswith("tmp can be written to")


@pytest.mark.parametrize(("name", "problem"), [("none", "does not exist"), ("file", "is not a folder")])
def test_another_than_the_one_that_is_set_is_a_warning(make_context, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    found = check_temporary_folder(make_context(environ={"TMPDIR": name}))
    assert (found.status, found.found) == ("warning", f"TMPDIR={name} {problem}; /tmp is taken instead")


@pytest.mark.parametrize(("room", "problem"), [((0, 9), "is full"), ((9, 0), "has no inodes left")])
def test_no_room_anywhere_is_a_failure(make_context, monkeypatch, room: tuple[int, int], problem: str) -> None:
    blocks, files = room
    disk = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=9, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    found = check_temporary_folder(make_context())
    assert (found.status, f"tmp {problem}" in found.found) == ("failure", True)


def test_another_machine_has_folders_of_its_own(make_context) -> None:
    assert check_temporary_folder(make_context(machine=Machine(devices=()))).status == "skipped"
