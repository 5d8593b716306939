"""An update loses nothing: files of older versions are read and changed; those of newer ones stay as they are."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.monitor.attach.saved_answers import SavedAnswers
from vramtop.monitor.history.history import History
from vramtop.monitor.sources.recording import read_recording
from vramtop.monitor.storage.pending_jobs import PendingJobs
from vramtop.tui.cli.main import main

DATA = Path(__file__).parent / "older_data"
FOLDERS = sorted(folder.name for folder in DATA.iterdir() if folder.is_dir())
NEWEST = FOLDERS[-1]
SHARDED: dict[str, Any] = {
    "name": "sft-8b",
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "training": {
        "micro_batch": 1,
        "sequence_length": 4096,
        "precision": "bf16",
        "optimizer": "adamw-fused",
        "activation_checkpointing": "full",
    },
    "parallel": {"strategy": "fsdp2", "data_shard": 8},
    "target": {"gpu": "h100-80gb"},
}
LORA: dict[str, Any] = {
    "name": "qlora-7b",
    "model": {"id": "qwen2.5-7b"},
    "training": {"micro_batch": 4, "sequence_length": 2048, "precision": "bf16", "optimizer": "paged-adamw-8bit"},
    "lora": {"rank": 16},
}
SMALL: dict[str, Any] = {
    "name": "tiny",
    "model": {"id": "gpt2"},
    "training": {"micro_batch": 8, "sequence_length": 1024, "precision": "fp16-mixed"},
}


@pytest.fixture(params=FOLDERS)
def older(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder, as an older version left it."""
    folder = tmp_path / "data" / "vramtop"
    shutil.copytree(DATA / request.param, folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder.parent))
    return folder


def jobs(folder: str = NEWEST) -> tuple[Job, ...]:
    """Return the jobs as a version understood them: it wrote down its defaults, which are derived now."""
    then = {"reduce_dtype": "fp32"} if folder == FOLDERS[0] else {}
    stated = (
        {
            **each,
            "training": {"optimizer": "adamw", **each["training"]},
            "parallel": {**each.get("parallel", {}), **then},
        }
        for each in (SHARDED, LORA, SMALL)
    )
    return tuple(job_from_mapping(each, where="test") for each in stated)


def wait_until_written() -> None:
    for thread in threading.enumerate():
        if thread.name == "save pending jobs":
            thread.join(10)


def test_pending_jobs_are_the_jobs_of_then_and_go_when_they_are_removed(
    older: Path, request: pytest.FixtureRequest
) -> None:
    wanted, said = jobs(request.node.callspec.params["older"]), list[str]()
    pending = PendingJobs(notify=said.append)
    assert pending.load() == wanted
    pending.add(pending.load()[0])
    wait_until_written()
    assert pending.load() == wanted  # not twice
    pending.remove(pending.load()[0])
    wait_until_written()
    assert PendingJobs().load() == wanted[1:]
    assert not said
    assert not [*older.glob("*.damaged-*")]


def test_answers_are_those_that_the_user_gave(older: Path) -> None:
    answers = SavedAnswers().load("0123456789abcdef")
    assert {key: answer.value for key, answer in answers.items()} == {
        "training.compile": True,
        "training.sequence_length": 2048,
        "training.micro_batch": 4,
        "training.precision": "bf16",
    }
    assert SavedAnswers().save("another", {"training.compile": False}) is None
    assert len(json.loads((older / "answers.json").read_text())["content"]) == 3


def test_a_recording_is_replayed(older: Path) -> None:
    readings = list(read_recording(older / "run.jsonl.gz"))
    assert len(readings) == 3
    (gpu,) = readings[0].gpus
    assert (gpu.name, gpu.used_bytes, len(gpu.processes)) == ("NVIDIA GeForce RTX 4090", 22_259_171_328, 4)


def test_the_doctor_finds_every_file_sound(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    files = json.loads(capsys.readouterr().out)["files"]
    assert (files["there"], files["set_aside"]) == (True, 0)


def test_measured_runs_are_there(tmp_path: Path) -> None:
    shutil.copytree(DATA / NEWEST, tmp_path / "data")
    history = History(tmp_path / "data" / "history.json")
    assert sorted((run.model, run.card, run.job.training.micro_batch) for run in history.list()) == [
        ("Llama 3.2 1B", "NVIDIA H100 80GB HBM3", size) for size in (1, 2, 4)
    ]


def test_what_a_newer_version_wrote_is_refused_in_a_sentence_and_stays(tmp_path: Path) -> None:
    """The files of today as a version might leave them that has changed their form."""
    folder = tmp_path / "data"
    shutil.copytree(DATA / NEWEST, folder)
    for name in ("pending.json", "answers.json"):
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**document, "version": 2}))
    (folder / "history.json").write_text(json.dumps({"version": 2, "content": {}}))
    before = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    said: list[str] = []
    pending = PendingJobs(folder / "pending.json", notify=said.append)
    assert pending.load() == ()
    pending.add(jobs()[0])
    wait_until_written()
    assert len(said) == 2
    assert "pending.json was written by another version of vramtop and is left as it is" in said[0]
    with pytest.raises(CannotTellError, match="another version of vramtop and is left as it is"):
        SavedAnswers(folder / "answers.json").save("run", {"training.compile": True})
    with pytest.raises(CannotTellError, match="another version of vramtop and is left as it is"):
        History(folder / "history.json").list()
    assert {path.name: path.read_bytes() for path in folder.glob("*.json")} == before
