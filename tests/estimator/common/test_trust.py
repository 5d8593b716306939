"""Whose will counts: programs, folders on the way to them, groups, links."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from vramtop.estimator.common.trust import (
    find_program,
    look_up_program,
    own_writers,
    process_owner,
    why_not_found,
    writers_of_program,
)

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def program(folder: Path, name: str = "tool") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_programs_are_found_in_absolute_folders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(tmp_path / "bin")
    monkeypatch.chdir(tmp_path / "bin")
    for path in (".", "", ":", "bin", f".:{tmp_path}/absent"):
        assert look_up_program("tool", path) is None
    assert find_program("tool", f".::{tmp_path}/bin") == found
    assert find_program("no-such-program", None) is None
    assert why_not_found("no-such-program", "/bin") == "there is no no-such-program in PATH"
    assert why_not_found("tool", "/bin:") == "there is no tool in PATH (relative folders are ignored)"


def test_a_program_that_others_may_replace_is_passed_over_and_said(tmp_path: Path) -> None:
    planted, own = program(tmp_path / "shared"), program(tmp_path / "own")
    (tmp_path / "shared").chmod(0o777)
    path = f"{planted.parent}:{own.parent}"
    assert look_up_program("tool", path) == planted
    assert find_program("tool", path) == own
    assert find_program("tool", str(planted.parent)) is None
    said = f"vramtop does not start {planted}: anyone may write to {planted.parent}"
    assert why_not_found("tool", str(planted.parent)) == said
    assert find_program(str(planted), None) == planted  # the user has said which


@pytest.mark.parametrize("which", ["program", "folder", "above", "link", "folder of the link", "beyond the link"])
def test_every_folder_and_link_on_the_way_counts(which: str, tmp_path: Path) -> None:
    found = program(tmp_path / "beyond" / "above" / "bin")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "bin").symlink_to(Path("..", "beyond", "above", "bin"))
    asked = tmp_path / "links" / "bin" / "tool"
    places = {
        "program": found, "folder": found.parent, "above": found.parent.parent, "link": tmp_path / "links" / "bin",
        "folder of the link": tmp_path / "links", "beyond the link": tmp_path / "beyond",
    }  # fmt: skip
    assert own_writers().distrust(asked) is None
    if which == "link":
        if os.geteuid():
            pytest.skip("only root can give links away")
        os.lchown(places[which], NOBODY, NOBODY)
        assert own_writers().distrust(asked) == f"{places[which]} belongs to another user"
    else:
        places[which].chmod(0o777)
        expected = places[which] if which != "program" else found
        assert own_writers().distrust(asked) == f"anyone may write to {expected}"


def test_a_folder_above_with_the_sticky_bit_is_shared_in_order(tmp_path: Path) -> None:
    found = program(tmp_path / "shared" / "bin")
    (tmp_path / "shared").chmod(0o1777)
    assert own_writers().distrust(found) is None
    assert own_writers().distrust(tmp_path / "shared") == "anyone may write to it"  # anyone may add to it


@needs_root
def test_a_strangers_file_and_a_group_of_others(tmp_path: Path) -> None:
    found = program(tmp_path / "bin")
    os.chown(found, NOBODY, 0)
    assert own_writers().distrust(found) == "it belongs to another user"
    assert writers_of_program(found).distrust(found) is None
    os.chown(found, 0, NOBODY)
    found.chmod(0o775)
    assert own_writers().distrust(found) == "another group may write to it"
    assert writers_of_program(found).distrust(found) is None  # who may replace the interpreter decides anyway


def test_a_users_private_group_has_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwuid(os.geteuid())
    names: list[str] = []
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((user.pw_name, "x", gid, names)))
    found = program(tmp_path / "bin")
    os.chown(found, os.geteuid(), pwd.getpwuid(os.geteuid()).pw_gid)
    found.chmod(0o775)  # as the umask 002 of many distributions makes them
    assert own_writers().distrust(found) is None
    names.append("mallory")
    assert own_writers().distrust(found) == "another group may write to it"


def test_a_circle_of_links_is_an_error_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        own_writers().distrust(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        own_writers().distrust(tmp_path / "absent")


def test_owners_of_processes() -> None:
    assert process_owner(os.getpid()) == os.geteuid()
    assert process_owner(2**22 + 1) is None
