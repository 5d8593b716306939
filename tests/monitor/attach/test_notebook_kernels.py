"""Jupyter kernels: the notebook comes from the server's variable, or from the program that runs the notebook.

The modules ``ipykernel_launcher`` and ``papermill`` are stand-ins that start and wait as the real ones do.
"""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from vramtop.monitor.attach.read_run import read_run

KERNEL = "import time\nprint('ready', flush=True)\ntime.sleep(120)\n"
RUNNER = """\
import subprocess, sys
subprocess.run([sys.executable, "-m", "ipykernel_launcher", "-f", "kernel-1.json"], cwd="elsewhere")
"""
TRAINS = """\
from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype="bfloat16")
args = TrainingArguments(output_dir="out", per_device_train_batch_size={batch})
max_length = 64
"""


def write_notebook(path: Path, *, batch: int, count: int | None = None) -> None:
    cell = {"cell_type": "code", "source": TRAINS.format(batch=batch), "execution_count": count, "metadata": {}}
    path.write_text(json.dumps({"cells": [cell], "nbformat": 4, "metadata": {}}))


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "ipykernel_launcher.py").write_text(KERNEL)
    (folder / "papermill.py").write_text(RUNNER)
    (tmp_path / "elsewhere").mkdir()
    return folder


def kernel() -> list[str]:
    return [sys.executable, "-u", "-m", "ipykernel_launcher", "-f", "kernel-1.json"]


def values(reading: Any) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in ("model.id", "training.micro_batch", "training.sequence_length"))


def test_the_server_names_the_notebook(start, modules: Path, tmp_path: Path) -> None:
    pid = start(kernel(), PYTHONPATH=str(modules), JPY_SESSION_NAME=str(tmp_path / "work.ipynb"))
    write_notebook(tmp_path / "work.ipynb", batch=3, count=1)
    attached = read_run(pid)
    assert values(attached.reading) == ("Qwen/Qwen3-0.6B", 3, 64)
    assert attached.reading.evidence()["training.micro_batch"].startswith("work.ipynb cell 1 line 3")
    assert any("had run when it was last saved" in warning for warning in attached.warnings)
    assert "ipykernel_launcher" in attached.command


def test_the_program_that_runs_the_notebook_names_it(start, modules: Path, tmp_path: Path) -> None:
    write_notebook(tmp_path / "in.ipynb", batch=2)
    pid = start([sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb"], PYTHONPATH=str(modules))
    (child,) = psutil.Process(pid).children()
    for each in (pid, child.pid):
        assert values(read_run(each).reading) == ("Qwen/Qwen3-0.6B", 2, 64)
    write_notebook(tmp_path / "out.ipynb", batch=4, count=1)
    assert values(read_run(child.pid).reading) == ("Qwen/Qwen3-0.6B", 4, 64)


def test_a_kernel_of_no_known_notebook_is_called_one(start, modules: Path, tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", batch=2)
    attached = read_run(start(kernel(), PYTHONPATH=str(modules), JPY_SESSION_NAME="console-1"))
    assert {"model.id", "training.micro_batch"} <= set(attached.reading.missing)
    (sentence,) = [warning for warning in attached.warnings if "Jupyter kernel" in warning]
    assert "its folder has a.ipynb" in sentence
    assert "vramtop estimate FILE.ipynb" in sentence
