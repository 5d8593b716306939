"""What vramtop writes holds command lines, users and jobs: only the user may read it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import make_gpu, make_snapshot

from vramtop.estimator.common.private_files import open_private, write_private
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import save_job
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.tui.cli.crash_report import save_fault
from vramtop.tui.cli.main import main


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("existed", [False, True])
def test_no_file_that_vramtop_writes_can_be_read_by_others(
    existed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    recording, page = tmp_path / "r.jsonl.gz", tmp_path / "r.html"
    written = [recording, page]
    if existed:
        for path in written:
            path.write_text("")
            path.chmod(0o644)
    with RecordingWriter(recording, overwrite=existed) as writer:
        for at in range(3):
            writer.write(make_snapshot([make_gpu(0, [])], time=2_000.0 + at))
    overwrite = ["--overwrite"] if existed else []
    assert main(["report", str(recording), "--out", str(page), *overwrite]) == 0, capsys.readouterr().err
    if not existed:
        save_job(Job(), tmp_path / "job.toml")
        fault = save_fault("x")
        assert fault is not None
        written += [tmp_path / "job.toml", fault]
    assert {path.name: oct(mode(path)) for path in written} == {path.name: "0o600" for path in written}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    write_private(file, b"first")
    link.symlink_to(file)
    write_private(link, b"second")
    assert (link.is_symlink(), file.read_bytes(), mode(file)) == (True, b"second", 0o600)
    with pytest.raises(FileExistsError):
        write_private(file, b"third", new=True)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(file, b"fourth")
    assert (file.read_bytes(), sorted(path.name for path in tmp_path.iterdir())) == (b"second", ["file", "link"])


def test_a_device_stays_one() -> None:
    write_private(Path("/dev/null"), b"x")
    before = mode(Path("/dev/null"))
    open_private(Path("/dev/null")).close()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert mode(Path("/dev/null")) == before
