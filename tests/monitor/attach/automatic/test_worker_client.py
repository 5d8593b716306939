"""A worker that hangs, dies or answers nonsense harms nothing: each is a reason, and a new one is started."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.estimator.common.records import replace
from vramtop.monitor.attach.automatic.read_job import answer
from vramtop.monitor.attach.automatic.worker_client import ReadRequest, WorkerClient


def request(pid: int) -> ReadRequest:
    return ReadRequest(pid=pid, start_time=None, on_gpu=frozenset(), gpu_name=None, gpu_bytes=None, folder="/")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param("import time\ntime.sleep(600)\n", "no answer within", id="hangs"),
        pytest.param("raise SystemExit('out of cheese')\n", "out of cheese", id="dies"),
        pytest.param("print('nonsense', flush=True)\ninput()\n", "ended", id="answers nonsense"),
    ],
)
def test_a_bad_worker_is_a_reason(tmp_path: Path, program: str, words: str) -> None:
    path = tmp_path / "worker.py"
    path.write_text(program)
    client = WorkerClient(path, reading_seconds=0.5)
    found = client.read(request(1))
    assert found.reason == "unreadable"
    assert words in (found.sentence or "")
    client.close()


def test_settings_that_the_user_has_named_are_those_of_the_job(start: Callable[..., int], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    pid = start([sys.executable, str(script), "--model_name_or_path", "gpt2", "--per_device_train_batch_size", "2"])
    plain, named = answer(request(pid)), answer(replace(request(pid), settings={"training.sequence_length": 96}))
    assert "training.sequence_length" in plain.missing
    assert "training.sequence_length" not in named.missing
    assert named.job
    assert named.job.training.sequence_length == 96
    assert named.job.training.micro_batch == 2
