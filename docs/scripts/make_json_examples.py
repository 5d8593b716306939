"""Writes the examples of docs/reference/json.md: what real commands print, on a simulated machine, shortened.

``make examples`` runs this, then writes the page. Lists keep their first entries, and an estimate and a job within
another output their most important fields. Names of this machine and its user are replaced.
"""

import contextlib
import getpass
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
from fake_driver import GIB, FakeDriver, FakeGpu, FakeProcess
from reference.json_pages import EXAMPLES, indented

from vramtop.tui.cli.main import main as vramtop

ROOT = Path(__file__).parents[2]
JOB = ("llama-3.1-8b", "--qlora", "--method", "formula")
SCRIPT = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
FLAGS = ("--model_name_or_path", "gpt2", "--per_device_train_batch_size", "4", "--bf16", "--output_dir", "out")
KEPT = {
    "job": ("name", "model", "training"),
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


def use_driver(pid: int) -> None:
    """Give this process two GPUs, one of them with a process."""
    held = FakeProcess(pid, 20 * GIB)
    name = "NVIDIA H100 80GB HBM3"
    gpus = [FakeGpu(name=name, uuid="GPU-a", used_bytes=21 * GIB, processes=[held]), FakeGpu(name=name, uuid="GPU-b")]
    driver = FakeDriver()
    driver.gpus.extend(gpus)
    pynvml.nvmlLib = driver
    pynvml._nvmlGetFunctionPointer_cache = {}


def outputs(pid: int) -> Iterator[tuple[str, str]]:
    """Yield name and text of each output that has an example."""
    yield "estimate", printed("estimate", *JOB, "--json")
    use_driver(pid)
    yield "once", printed("--once", "--json")


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
                for output, text in outputs(training.pid):
                    value = shortened(json.loads(text), names)
                    (EXAMPLES / f"{output}.json").write_text(f"{indented(value)}\n", encoding="utf-8")
                    print(output, flush=True)
            finally:
                training.kill()


if __name__ == "__main__":
    main()
