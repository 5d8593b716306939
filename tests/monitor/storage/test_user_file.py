"""The user's files are private, written completely or not at all, and never lost; every failure is reported."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.job_file.load_and_save import save_job
from vramtop.estimator.trace.answer_cache import read_cached, write_cached
from vramtop.monitor.attach.saved_answers import SavedAnswers
from vramtop.monitor.storage.pending_jobs import PendingJobs
from vramtop.monitor.storage.settings.change import change_settings
from vramtop.monitor.storage.user_file import UserFile, data_file

JOB = Job(name="a", model=ModelSpec(id="gpt2"))


def keep(path: Path, job: Job = JOB) -> list[str]:
    """Save a job as the dashboard does; return the reported sentences."""
    said: list[str] = []
    PendingJobs(path, said.append).add(job)
    for thread in threading.enumerate():
        if thread.name == "save pending jobs":
            thread.join()
    return said


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert keep(tmp_path / "own" / "vramtop" / "pending.json") == []
        write_cached(tmp_path / "cache" / "vramtop" / "traces" / "x.json", 1, {"a": 1})
    finally:
        os.umask(before)
    found = [*tmp_path.rglob("*")]
    assert {mode(folder) for folder in found if folder.is_dir()} == {0o700}
    assert {mode(file) for file in found if file.is_file()} == {0o600}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "huge", "newer"])
def test_anything_but_a_regular_file_in_its_place_is_kept_and_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            (tmp_path / "zero").symlink_to("/dev/zero")
            path = tmp_path / "zero"
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "huge":
            with path.open("wb") as file:
                file.truncate(10 << 30)
        case "newer":
            path.write_text('{"version": 99, "content": {"of": "tomorrow"}}')
    before = path.lstat()
    for said in (keep(path), [refusal(path)]):
        assert all(len(sentence) < 300 and sentence.endswith(".") for sentence in said)
    assert (path.lstat().st_ino, path.lstat().st_size) == (before.st_ino, before.st_size)
    assert not list(tmp_path.glob("*.damaged-*"))
    assert not Path("/dev/zero.lock").exists()


def refusal(path: Path) -> str:
    with pytest.raises(CannotTellError) as caught:
        SavedAnswers(path).load("run")
    return caught.value.message


def test_without_a_home_folder_nothing_is_written(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramtop.monitor.storage.user_file.user_data_dir", lambda name: f"~/.local/share/{name}")
    with pytest.raises(CannotTellError, match="set HOME or XDG_DATA_HOME"):
        data_file("pending.json")
    said: list[str] = []
    assert PendingJobs(notify=said.append).load() == ()
    assert said
    assert not list(in_folder.iterdir())


FULL = """
import resource, sys
from pathlib import Path
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.job.job_file.load_and_save import save_job
from vramtop.estimator.trace.answer_cache import write_cached
from vramtop.monitor.attach.saved_answers import SavedAnswers
from vramtop.estimator.job.job import Job, ModelSpec
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
folder = Path(sys.argv[1])
write_cached(folder / "cache.json", 1, {"a": "x" * 1000})
for act in (lambda: SavedAnswers(folder / "x.json").save("r", {"a": "x" * 1000}),
            lambda: save_job(Job(name="x" * 1000), folder / "new.toml"),
            lambda: save_job(Job(name="x" * 1000), folder / "old.toml", overwrite=True)):
    try:
        act()
    except VramtopError as error:
        print(error.message)
"""


def test_a_full_disk_leaves_the_old_files_complete_and_no_partial_ones(tmp_path: Path) -> None:
    SavedAnswers(tmp_path / "x.json").save("old", {"training.micro_batch": 1})
    save_job(JOB, tmp_path / "old.toml")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    told = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    assert told.stdout.count("cannot be written: File too large") == 3
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


KEEPS = """
import sys
from pathlib import Path
from vramtop.monitor.attach.saved_answers import SavedAnswers
for number in range(40):
    SavedAnswers(Path(sys.argv[1])).save("run", {f"{sys.argv[2]}.{number}": number})
"""


def test_dashboards_that_write_at_once_keep_each_others_entries(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    three = [subprocess.Popen([sys.executable, "-c", KEEPS, path, name]) for name in "abc"]
    assert [process.wait() for process in three] == [0, 0, 0]
    assert SavedAnswers(path).load("run").keys() == {f"{name}.{number}" for name in "abc" for number in range(40)}


def test_a_damaged_file_is_reported_even_if_nothing_can_be_written(tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    monkeypatch.setattr(os, "fsync", lambda handle: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    with pytest.raises(CannotTellError, match=r"damaged\. It was kept as .* No space left on device"):
        SavedAnswers(path).save("run", {})
    assert [file.read_text() for file in tmp_path.glob("x.json.damaged-*")] == ["{"]


def test_a_pipe_in_place_of_a_cache_is_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    assert read_cached(tmp_path / "x.json", 1, dict) is None


@settings(max_examples=60)
@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists).map(
        lambda content: json.dumps({"version": 1, "content": content}).encode()
    )
)
def test_any_file_is_read_or_reported(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    said: list[str] = []
    jobs = PendingJobs(path, said.append).load()
    assert said or not jobs
    with contextlib.suppress(CannotTellError):
        SavedAnswers(path).load("run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_root_writes_nothing_where_another_user_leads_the_way(tmp_path: Path) -> None:
    for name, home in (("linked", tmp_path / "linked"), ("theirs", tmp_path / "theirs" / "vramtop")):
        (tmp_path / f"{name}.shadow").write_text("root's own")
        home.mkdir(parents=True)
        for file in ("answers.json", "config.toml", "trace.json"):
            (home / file).symlink_to(tmp_path / f"{name}.shadow")
            os.chown(home / file, 65534, 65534, follow_symlinks=False)
    os.chown(tmp_path / "theirs", 65534, 65534)
    for home in (tmp_path / "linked", tmp_path / "theirs" / "vramtop", tmp_path / "theirs" / "none" / "yet"):
        with pytest.raises(CannotTellError, match="belongs to another user; set HOME to a folder of your own"):
            UserFile(home / "answers.json", list[str], list, "answers").change(lambda old: [*old, "new"])
        with pytest.raises(CannotTellError, match="belongs to another user"):
            change_settings({"dashboard.interval": 3.0}, {"VRAMTOP_CONFIG": str(home / "config.toml")})
        write_cached(home / "trace.json", 1, 5)
    assert [(tmp_path / f"{name}.shadow").read_text() for name in ("linked", "theirs")] == ["root's own"] * 2
    assert not (tmp_path / "theirs" / "none").exists()
    assert {each.name for each in tmp_path.iterdir()} == {"linked", "linked.shadow", "theirs", "theirs.shadow"}
