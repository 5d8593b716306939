"""Permissions of the user, and the state of vramtop's own files."""

import json

from vramtop.monitor.doctor.driver_facts import DriverFacts
from vramtop.monitor.doctor.system import (
    DeviceFile,
    PermissionFacts,
    collect_data_folder_facts,
    collect_permission_facts,
)
from vramtop.monitor.history.history import Database


def test_permissions_are_read(tmp_path, make_page, issue_sentences):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text("proc /proc proc rw,nosuid,hidepid=invisible 0 0\n")
    (tmp_path / "nvidiactl").write_text("")
    (tmp_path / "nvidiactl").chmod(0o600)
    (tmp_path / "null").write_text("")
    facts = collect_permission_facts(proc=tmp_path, dev=tmp_path)
    assert facts.hidepid == "invisible"
    assert facts.devices == (DeviceFile(path="/dev/nvidiactl", mode="0600", usable=True),)
    page = make_page(
        DriverFacts(problem="no driver"),
        access=PermissionFacts(
            root=False, devices=(DeviceFile(path="/dev/nvidia0", mode="0600", usable=False),), hidepid="invisible",
            sees_others=False, pidfd=False,
        ),
    )  # fmt: skip
    words = issue_sentences(page)
    assert "this user may not open /dev/nvidia0 (mode 0600)" in words
    assert "hidepid=invisible" in words
    assert "no pidfds" in words


def test_own_files_are_checked(tmp_path, make_page, issue_sentences):
    (tmp_path / "pending.json").write_text(json.dumps({"version": 1, "content": []}))
    (tmp_path / "pending.json").chmod(0o600)
    with Database(tmp_path / "history.sqlite3").writing():
        pass
    (tmp_path / "other.sqlite3").write_bytes(b"no database")
    (tmp_path / "answers.json").write_text('{"version": 1, "cont')
    (tmp_path / "answers.json").chmod(0o644)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "answers.json.damaged-20260101-000000").write_text("x")
    facts = collect_data_folder_facts(tmp_path)
    states = {file.name: (file.state, file.sound) for file in facts.files}
    assert states["pending.json"] == ("version 1", True)
    assert states["answers.json"] == ("damaged", False)
    assert states["history.sqlite3"] == ("0 measured runs", True)
    assert states["other.sqlite3"] == ("damaged", False)
    assert states["deep.json"] == ("damaged", False)
    assert facts.set_aside == 1
    words = issue_sentences(make_page(DriverFacts(), files=facts))
    assert "answers.json: damaged" in words
    assert "pending.json" not in words
    (tmp_path / "pending.json").chmod(0o644)
    assert "pending.json can be read by others (mode 0644)" in issue_sentences(
        make_page(DriverFacts(), files=collect_data_folder_facts(tmp_path))
    )


def test_a_missing_folder_is_no_issue(tmp_path, make_page):
    facts = collect_data_folder_facts(tmp_path / "new" / "vramtop")
    assert (facts.there, facts.writable, facts.files) == (False, True, ())
