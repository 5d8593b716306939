"""Writes the examples of docs/reference/json.md: what real commands print, on a simulated machine, shortened.

``make examples`` runs this, then writes the page. Lists keep their first entries, and an estimate and a job within
another output their most important fields. Names of this machine and its user are replaced.
"""

import contextlib
import getpass
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
from fake_driver import GIB, FakeDriver, FakeGpu, FakeProcess
from memory_snapshots import LOAD, Recorder
from reference.json_pages import EXAMPLES, indented
from simulated_host import program
from stand_in_ssh import StandInSsh

from vramtop.monitor.fleet.remote import SSH_VARIABLE
from vramtop.tui.cli.main import main as vramtop

ROOT = Path(__file__).parents[2]
JOB = ("llama-3.1-8b", "--qlora", "--method", "formula")
SCRIPT = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
FLAGS = ("--model_name_or_path", "gpt2", "--per_device_train_batch_size", "4", "--bf16", "--output_dir", "out")
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 22.65 GiB memory in use. Of the "
    "allocated memory 19.00 GiB is allocated by PyTorch, and 2.75 GiB is reserved by PyTorch but unallocated.\n"
)
SUITE = """
[models.gpt2]
id = "gpt2"
[[part]]
name = "steps"
jobs = [{ model = "gpt2", training = { micro_batch = 4 } }]
"""
KEPT = {
    "budget": ("schema", "method", "peak", "steady_device_bytes"),
    "job": ("name", "model", "training"),
    "system": ("packages", "python", "machine", "container", "wsl"),
    "training": ("micro_batch", "sequence_length", "precision", "optimizer"),
}
"""Fields that an object keeps within another output, by its name there."""
ENTRIES = 3
"""Numbers and words that a list keeps; of objects it keeps one."""


def shortened(value: Any, names: Mapping[str, str], *, at: str = "") -> Any:
    """Return a value with short lists, without the names of this machine."""
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key in KEPT.get(at, value)}
        return {key: shortened(part, names, at=key) for key, part in kept.items()}
    if isinstance(value, list):
        most = 1 if any(isinstance(part, dict) for part in value) else ENTRIES
        return [shortened(part, names) for part in value[:most]]
    if isinstance(value, str):
        if value in names:
            return names[value]
        for own, shown in names.items():
            value = value.replace(own, shown) if own.startswith("/") else value
    return value


def printed(*words: str) -> str:
    """Return what a command prints."""
    data = io.BytesIO()
    out = io.TextIOWrapper(data, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        vramtop(words)
    return data.getvalue().decode()


def first_line(*command: str) -> str:
    """Return the first line that a program prints, and end it."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        line = child.stdout.readline() if child.stdout else ""
        child.terminate()
    return line


def use_driver(pid: int) -> None:
    """Give this process two GPUs, one of them with a process."""
    held = FakeProcess(pid, 20 * GIB)
    name = "NVIDIA H100 80GB HBM3"
    gpus = [FakeGpu(name=name, uuid="GPU-a", used_bytes=21 * GIB, processes=[held]), FakeGpu(name=name, uuid="GPU-b")]
    driver = FakeDriver()
    driver.gpus.extend(gpus)
    pynvml.nvmlLib = driver
    pynvml._nvmlGetFunctionPointer_cache = {}


def outputs(folder: Path, pid: int) -> Iterator[tuple[str, str]]:
    """Yield name and text of each output."""
    yield "estimate", printed("estimate", *JOB, "--json")
    yield "fit", printed("fit", *JOB, "--gpu-memory", "8GiB", "--host-memory", "64GiB", "--json")
    for name in ("slurm", "kubernetes"):
        yield f"fit-{name}", printed("fit", *JOB, "--gpu-type", "h100", f"--{name}", "--json")
    use_driver(pid)
    yield "once", printed("--once", "--json")
    given = ("--set", "training.sequence_length=1024", "--method", "formula")
    yield "attach", printed("attach", str(pid), *given, "--json")
    yield "preflight", printed("preflight", "gpt2", "--method", "formula", "--json")
    yield "models", printed("models", "llama-3.1-8b", "--json")
    yield "doctor", printed("doctor", "--json")
    yield "record", printed("record", "run.jsonl", "--seconds", "1.5", "--json")
    head, line, *_ = (folder / "run.jsonl").read_text().splitlines()
    yield "recording-head", head
    yield "recording-line", line
    yield "report", printed("report", "run.jsonl", "--json")
    (folder / "job.log").write_text(LOG)
    yield "explain", printed("explain", "job.log", "--job", "gpt2", "--method", "formula", "--json")
    recorder = Recorder()
    recorder.alloc(64, LOAD)
    (folder / "memory.pickle").write_bytes(pickle.dumps(recorder.snapshot()))
    yield "explain-snapshot", printed("explain", "memory.pickle", "--json")
    yield "measure", printed("measure", "gpt2", "--cpu", "--method", "formula", "--json")
    (folder / "suite.toml").write_text(SUITE)
    yield "measure-suite", printed("measure", "--suite", "suite.toml", "--cpu", "--method", "formula", "--json")
    yield "history-export", printed("history", "--export", "runs.jsonl", "--json")
    yield "history-forget", printed("history", "--forget", "--all", "--json")
    yield "config", printed("config", "dashboard.interval", "--json")
    yield "config-change", printed("config", "dashboard.interval", "2", "--json")
    yield "config-path", printed("config", "--path", "--json")
    simulated = str(program(folder / "bin", 2, 80))
    line = first_line(simulated, "stream")
    yield "stream", line
    ssh = StandInSsh(folder)
    os.environ[SSH_VARIABLE] = str(ssh.program)
    ssh.sends("node01", line.encode())
    yield "once-hosts", printed("--once", "--host", "node01", "--json")
    yield "fit-hosts", printed("fit", *JOB, "--host", "node01", "--json")
    yield "export", first_line(simulated, "export", "--listen", "127.0.0.1:9400", "--json")
    yield "serve", first_line(simulated, "serve", "--json")


def main() -> None:
    """Write the examples."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        folder.mkdir()
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(name) / kind.lower())
        os.environ["PYTHONPATH"] = str(ROOT)
        os.chdir(folder)
        (folder / "train.py").write_text(SCRIPT)
        command = [sys.executable, "train.py", *FLAGS]
        names = {
            str(folder): "/home/ann/work",
            name: "/home/ann",
            sys.prefix: "/home/ann/venv",
            os.uname().nodename: "node01",
            getpass.getuser(): "ann",
        }
        with subprocess.Popen(command, stdout=subprocess.PIPE) as training:
            if training.stdout is not None:
                training.stdout.readline()
            try:
                for output, text in outputs(folder, training.pid):
                    value = shortened(json.loads(text), names)
                    (EXAMPLES / f"{output}.json").write_text(f"{indented(value)}\n", encoding="utf-8")
                    print(output, flush=True)
            finally:
                training.kill()


if __name__ == "__main__":
    main()
