"""``--once`` and ``record`` attach to the training processes on the GPUs by themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from command_line import vramtop
from json_schemas import valid_json

from vramtop.monitor.sources.recording import read_recording

FLAGS = ("--model_name_or_path", "meta-llama/Llama-3.1-8B", "--per_device_train_batch_size", "2", "--max_length", "512")
Run = Callable[..., str]


@pytest.fixture
def training(start_script) -> psutil.Process:
    return psutil.Process(start_script(*FLAGS).pid)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, training: Any) -> Run:
    """Run a command on a machine with the training process and a notebook; return its output."""
    held = make_process(pid=training.pid, start_time=training.create_time(), command=" ".join(training.cmdline()))
    notebook = make_process(pid=77, used=1, command="python -m ipykernel_launcher -f kernel.json")
    machine = ScriptedSource([make_snapshot([make_gpu(0, [held, notebook])])])

    def call(*words: str) -> str:
        for command in ("once", "record"):
            monkeypatch.setattr(f"vramtop.tui.cli.commands.{command}.NvmlSource", lambda *_, **__: machine)
        monkeypatch.setattr("vramtop.tui.cli.commands.once._ATTACH_SECONDS", 60.0)  # on a busy machine
        return vramtop(*words, code=0).out

    return call


def test_once_has_the_jobs(run: Run, training: psutil.Process) -> None:
    answer = valid_json("once", run("--once", "--json"))
    job, notebook = answer["gpus"][0]["processes"]
    assert (job["job"], job["no_budget_reason"]) == ("Llama-3.1-8B", None)
    assert job["budget_bytes"] == answer["runs"][0]["budget_bytes"] > 0
    assert (answer["runs"][0]["pids"], answer["runs"][0]["missing"]) == ([training.pid], [])
    assert (notebook["job"], notebook["no_budget_reason"]) == (None, "notebook")


def test_once_reads_nothing_with_no_attach(run: Run) -> None:
    assert "not attached" in run("--once", "--no-attach")
    answer = valid_json("once", run("--once", "--json", "--no-attach"))
    assert (answer["runs"], answer["gpus"][0]["processes"][0]["no_budget_reason"]) == ([], "not attached")


@pytest.mark.slow  # records until the worker has read the process
def test_a_recording_has_the_runs(run: Run, tmp_path: Path, training: psutil.Process) -> None:
    run("record", str(tmp_path / "run.jsonl"), "--seconds", "6", "--interval", "0.5")
    *_, last = read_recording(tmp_path / "run.jsonl")
    assert [(run.job.label, run.pids[0][0]) for run in last.watched] == [("Llama-3.1-8B", training.pid)]
