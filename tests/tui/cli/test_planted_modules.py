"""Modules planted in the current folder, in the job's and in a stranger's: none of vramtop's processes imports them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from vramtop.tui.cli.main import COMMANDS

NAMES = (
    *("json", "types", "typing", "subprocess", "re", "enum", "struct", "signal", "threading", "platform", "tempfile"),
    *("sitecustomize", "usercustomize", "torch", "transformers", "peft", "msgspec", "psutil", "pynvml", "textual"),
)
PACKAGES = ("vramtop", "worker", "yaml")
MAIN = "import sys\nfrom vramtop.tui.cli import main\nsys.exit(main())\n"
JOB = """
[model]
id = "tiny"
[model.config]
model_type = "llama"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 1000
"""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "attach": ("PID",),
    "record": ("RECORDING", "--seconds", "0.1", "--overwrite"),
    "measure": ("JOB", "--cpu", "--steps", "1", "--method", "formula"),
    "run": ("--", sys.executable, "-I", "-c", "print('the program ran')"),
    "fit": ("JOB", "--gpu-type", "h100-80gb", "--method", "exact"),
    "preflight": ("JOB", "--gpu-type", "h100-80gb"),
    "doctor": (),
}
"""Arguments by command; every other command gets a job."""
DEFAULT_ARGUMENTS = ("JOB", "--method", "exact")
LINES = [(name, *ARGUMENTS.get(name, DEFAULT_ARGUMENTS)) for name in COMMANDS]
LINES += [("--once", "--json"), ("--once", "--pid", "PID"), ("preflight", "--", "python", "JOBFOLDER/train.py")]
PATHS: dict[str, str | None] = {
    "no PYTHONPATH": None,
    "empty": "",
    "the current folder": ".",
    "an empty entry": ":/nowhere:",
    "absolute": "CWD:JOBFOLDER",
}


class Plants:
    """Folders with modules that leave a mark when they run, and the same folders without them."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.main = folder / "program" / "main.py"
        self.main.parent.mkdir()
        self.main.write_text(MAIN)
        self.current, self.job_folder = folder / "current", folder / "job"
        for each in (self.current, self.job_folder):
            each.mkdir()
        (self.job_folder / "job.toml").write_text(JOB)
        (self.job_folder / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")

    def plant(self) -> None:
        for folder in (self.current, self.job_folder):
            for name in NAMES:
                (folder / f"{name}.py").write_text(self.code(folder, name))
            for name in PACKAGES:
                (folder / name).mkdir()
                (folder / name / "__init__.py").write_text(self.code(folder, name))

    def code(self, folder: Path, name: str) -> str:
        mark = self.marks / f"{folder.name}-{name}"
        return f"open({str(mark)!r}, 'w').close()\n"

    def found(self) -> list[str]:
        return sorted(each.name for each in self.marks.iterdir())

    def environ(self, path: str | None) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ["XDG_CACHE_HOME"] = str(self.marks.parent / "cache")
        if path is not None:
            environ["PYTHONPATH"] = path.replace("CWD", str(self.current)).replace("JOBFOLDER", str(self.job_folder))
        return environ

    def run(self, line: Sequence[str], path: str | None = None, *, pid: int = 0) -> tuple[int, str, str]:
        """Run vramtop; an isolated interpreter is not what PYTHONPATH reaches, but all that it starts is."""
        words = {
            "PID": str(pid),
            "JOB": str(self.job_folder / "job.toml"),
            "RECORDING": str(self.marks.parent / "r.gz"),
        }
        arguments = [words.get(word, word).replace("JOBFOLDER", str(self.job_folder)) for word in line]
        done = subprocess.run(
            [sys.executable, "-I", str(self.main), *arguments],
            cwd=self.current, env=self.environ(path), capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def plants(tmp_path: Path) -> Plants:
    return Plants(tmp_path)


@pytest.fixture
def job_process(plants: Plants, start_program) -> int:
    process = start_program([sys.executable, "-I", "train.py"], cwd=plants.job_folder)
    assert process.stdout.readline() == "up\n"
    return process.pid


def facts(line: Sequence[str], answer: tuple[int, str, str]) -> object:
    """Return what must not depend on planted modules: a report says how long it took, a reading what is used now."""
    code, output, errors = answer
    if line[0] == "doctor":
        return code, [row for row in output.splitlines() if "torch" in row.lower()]
    if line[0] in ("--once", "attach", "record"):
        return code, errors
    return code, output


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line)[:40])
def test_no_command_imports_planted_modules(plants, job_process, line, path) -> None:
    if line == ("doctor",):
        path = path and path.replace(":JOBFOLDER", "")  # it knows of no job: the folder is one like any other
    clean = plants.run(line, path, pid=job_process)
    plants.plant()
    planted = plants.run(line, path, pid=job_process)
    assert plants.found() == []
    assert facts(line, planted) == facts(line, clean)
    assert "Traceback" not in planted[2]
