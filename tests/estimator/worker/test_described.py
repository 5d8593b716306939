"""A script of a described job runs in children of the worker, which do not outlive it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from waiting import until

pytest.importorskip("torch")
PROGRAM = """
import os
if worker := os.fork():
    os.waitpid(worker, 0)
    os._exit(0)
os.setsid()  # what the Python with torch started would end with it
open({file!r} + ".pid", 'w').write(str(os.getpid()))
from vramtop.estimator.worker.described import trace_script
text = "import time\\nopen({file!r}, 'a').write('begun')\\ntime.sleep(600)\\n"
trace_script({{"text": text, "start": ["train.py"], "gpus": 1, "card": {card}}}, [None, None])
"""
CARD = {"name": "GPU", "total_memory": 1 << 36, "capability": [9, 0], "context": 0, "workspace": 0}


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_children_end_with_a_worker_that_is_killed(tmp_path: Path, python_with_torch: str) -> None:
    file = tmp_path / "begun"
    program = PROGRAM.format(file=str(file), card=CARD)
    with subprocess.Popen([python_with_torch, "-u", "-c", program]) as parent:
        until(lambda: (file.exists() and file.read_text() == "begunbegun") or parent.poll() is not None)
        assert parent.poll() is None
        worker = int(file.with_suffix(".pid").read_text())
        started = children(worker)
        assert len(started) == 2
        os.kill(worker, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
