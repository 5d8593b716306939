import sys
import threading
import time
from pathlib import Path

import pytest

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CancelledError
from vramtop.estimator.trace.worker_process import Worker


def sleeper(tmp_path: Path) -> Path:
    file = tmp_path / "sleeper.py"
    asked = str(tmp_path / "asked")
    file.write_text(f"import sys, time\nsys.stdin.readline()\nopen({asked!r}, 'w').close()\ntime.sleep(60)\n")
    return file


def test_cancelling_a_pending_request_ends_its_worker(tmp_path: Path) -> None:
    cancel, pids, raised = CancelToken(), [], []

    def ask() -> None:
        with cancel.scope(), Worker(Path(sys.executable), sleeper(tmp_path)) as worker:
            pids.append(worker.pid)
            try:
                worker.request({}, 50)
            except CancelledError as error:
                raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not (tmp_path / "asked").exists():
        time.sleep(0.01)
    cancel.cancel()
    thread.join(10)

    assert len(raised) == 1
    assert not Path(f"/proc/{pids[0]}").exists()


def test_a_cancelled_scope_refuses_new_requests(tmp_path: Path) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with (
        cancel.scope(),
        Worker(Path(sys.executable), sleeper(tmp_path)) as worker,
        pytest.raises(CancelledError, match="before it began"),
    ):
        worker.request({}, 50)
