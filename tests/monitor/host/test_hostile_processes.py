"""Other users' processes and files, read by root: none of their code is run, and nothing waits for them."""

import json
import os
import time
from pathlib import Path

import pytest

from vramtop.estimator.readers.program.program import Program
from vramtop.estimator.readers.program.run_logs import logged_trainer_settings
from vramtop.estimator.readers.source.evidence import FindingCollector
from vramtop.estimator.readers.source.filesystem_view import FilesystemView
from vramtop.estimator.readers.source.settings import LayeredSettings, Setting
from vramtop.estimator.readers.tools.tool_registry import parse_launch
from vramtop.monitor.host.process_stat import is_own_process
from vramtop.monitor.probe.probe_reader import open_probe, parse_sample
from vramtop.monitor.storage.reservations import Reservations

NOBODY = 65534


def test_own_processes_are_recognised(start_python) -> None:
    assert is_own_process(start_python("input()").pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start processes of other users")
def test_a_setuid_program_belongs_to_the_user_who_started_it(start_python) -> None:
    code = f"import os, sys; os.setresuid({NOBODY}, 0, 0); print(flush=True); sys.stdin.read()"
    process = start_python(code)
    process.stdout.readline()
    assert Path(f"/proc/{process.pid}").stat().st_uid == 0  # the effective user, not the one who started it
    assert not is_own_process(process.pid)


def test_a_pipe_is_not_taken_for_a_probe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    assert open_probe(tmp_path / "x") is None


@pytest.mark.parametrize("number", ["Infinity", "1e999", "-1", "NaN", "1" + "0" * 400, '"x"', "null", "[]"])
def test_impossible_figures_of_a_probe_are_ignored(number: str) -> None:
    for field in ("pid", "time", "steps", "devices", "ended"):
        facts = {"pid": "1", "time": "1.0", "devices": "[]", field: number}
        text = "{" + ", ".join(f'"{name}": {value}' for name, value in facts.items()) + "}"
        sample = parse_sample(text.encode(), b"{}")
        assert sample is None or 0 <= sample.time < 2**40


@pytest.mark.parametrize(
    "absurd",
    [
        *({"start_time": 1e308}, {"pid": 10**30}, {"pid": -1}, {"until": -1}, {"until": 1e18}),
        *({"gpus": {"u": -5}}, {"gpus": {"u": 2**63}}, {"gpus": {"u": 10**30}}),
    ],
)
def test_an_impossible_reservation_is_ignored(tmp_path: Path, absurd: dict[str, object]) -> None:
    promise = {"pid": os.getpid(), "start_time": 1.0, "job": "x", "gpus": {"u": 5}}
    for more, count in (({}, 1), (absurd, 0)):
        folder, told = tmp_path / str(count), promise | more
        own = tmp_path / f"{count}-{os.geteuid()}"
        own.mkdir()
        (own / f"{told['pid']}-1000.json").write_text(json.dumps(told))
        assert len(Reservations(folder=folder, is_running=lambda key: True).active()) == count


def test_an_output_folder_is_searched_only_to_a_limit(tmp_path: Path) -> None:
    name, folder = f"events.out.tfevents.1.host.{os.getpid()}.0", tmp_path
    for level in "abcdefgh":
        folder = folder / level
    folder.mkdir(parents=True)
    near = tmp_path / "runs" / "today"
    near.mkdir(parents=True)
    for place, key in ((folder, "deep"), (near, "near")):
        (place / name).write_text(f'args/text_summary {{"{key}": 3}}')
    (tmp_path / "again").symlink_to(tmp_path)
    launch = parse_launch(["python", "train.py"])
    program = Program(
        launch=launch,
        launcher=launch,
        environ={},
        filesystem=FilesystemView(cwd=tmp_path),
        versions={},
        findings=FindingCollector(),
        pid=os.getpid(),
        started_at=time.time() - 60,
    )
    found = logged_trainer_settings(program, LayeredSettings({"output_dir": Setting(value=str(tmp_path), origin="x")}))
    assert set(found) == {"near"}
