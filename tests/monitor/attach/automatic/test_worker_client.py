"""A worker that hangs, dies or answers nonsense harms nothing: each is a reason, and a new one is started."""

from pathlib import Path

import pytest

from vramtop.monitor.attach.automatic.run_answer import ReadRequest
from vramtop.monitor.attach.automatic.worker_client import WorkerClient


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
    answer = client.read(request(1))
    assert answer.reason == "unreadable"
    assert words in (answer.sentence or "")
    client.close()


def test_the_worker_answers_for_a_process_that_is_not_there() -> None:
    client = WorkerClient()
    try:
        assert client.read(request(2**22 + 1)).reason == "ended"
        assert client.read(request(2**22 + 2)).reason == "ended"
    finally:
        client.close()
