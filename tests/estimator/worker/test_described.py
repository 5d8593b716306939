"""A script of a described job runs in children of the worker, which do not outlive it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

pytest.importorskip("torch")
PROGRAM = """
from vramtop.estimator.worker.described import trace_script
text = "import time\\nopen({file!r}, 'a').write('begun')\\ntime.sleep(600)\\n"
trace_script({{"text": text, "start": ["train.py"], "gpus": 1, "card": {card}}}, [None, None])
"""
CARD = {"name": "GPU", "total_memory": 1 << 36, "capability": [9, 0], "context": 0, "workspace": 0}


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_children_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "begun"
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(file=str(file), card=CARD)]) as worker:
        until(lambda: (file.exists() and file.read_text() == "begunbegun") or worker.poll() is not None)
        assert worker.poll() is None
        started = children(worker.pid)
        assert len(started) == 2
        os.kill(worker.pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
