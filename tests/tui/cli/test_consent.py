"""A program runs where its user asked for it and nowhere else, once, and never another user's."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import exporter
import pytest
from command_line import vramtop
from counted_python import counted_python
from slow_cases import quick_every

from vramtop.tui.cli.main import COMMANDS

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"
ASK = {"rehearse"}
"""Commands that run a program without a further flag."""
OFTEN = {"attach"}
"""Commands that the quick tests try; the slow ones try all."""
WORDS = {
    "fit": ["fit JOB --gpu-type 4090", "fit JOB --slurm", "wait JOB --timeout 1", "JOB", "--once --job JOB"],
    "preflight": ["preflight JOB --gpu-type 4090"],
    "wait": ["wait JOB --timeout 1"],
    "explain": ["explain LOG --job JOB"],
    "export": ["export --job JOB --listen 0"],
}
"""Further command lines that load a job."""
SECONDS = 4.0
"""Time after which commands that do not end by themselves are ended."""


@pytest.fixture
def folder(in_folder: Path, own_cache: Path) -> Path:
    """The current folder, with a job file."""
    python = in_folder / "python"
    write_program(in_folder / "train.py")
    (in_folder / "job.toml").write_text(f'[program]\ncommand = "{python} train.py"\n')
    (in_folder / "log").write_text(LOG)
    return in_folder


def write_program(file: Path) -> None:
    file.write_text(
        "import torch\n"
        "net = torch.nn.Linear(1024, 1024).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for step in range(5):\n"
        "    net(torch.randn(8, 1024).cuda()).sum().backward()\n"
        "    optimizer.step()\n"
    )


@pytest.fixture
def runs(folder: Path) -> Iterator[Callable[[], int]]:
    """How often the program of the job file has been started."""
    with counted_python(folder / "python") as count:
        yield count


@pytest.mark.parametrize(
    "command",
    [
        command if command in OFTEN else pytest.param(command, marks=pytest.mark.slow)
        for command in sorted(COMMANDS.keys() - ASK)
    ],
)
def test_no_command_runs_the_program_of_a_job_file(command: str, folder: Path, runs: Callable[[], int]) -> None:
    (folder / "machine.json").write_text('[{"used_gib": 79, "processes": {}}]')
    lines = [f"{command} JOB", f"{command} --job JOB", *WORDS.get(command, ())]
    for line in lines:
        words = line.replace("JOB", "job.toml").replace("LOG", "log").split()
        started = subprocess.Popen(
            [sys.executable, exporter.__file__, "machine.json", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, err = started.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            _, err = started.communicate()
        assert runs() == 0, line
        assert "Traceback" not in err


@pytest.mark.parametrize(
    "line", ["fit JOB --gpu-type 4090", "estimate JOB --gpu-type 4090", "JOB --gpu-type 4090", "explain LOG --job JOB"]
)
def test_the_answer_is_the_command_to_type(line: str, folder: Path, runs: Callable[[], int]) -> None:
    words = line.replace("JOB", "job.toml").replace("LOG", "log").split()
    said = vramtop(*words, code=3).err
    assert said.startswith("vramtop: not rehearsed: vramtop ")
    assert said.endswith(" job.toml runs the program without a GPU\n")
    assert runs() == 0


@pytest.mark.usefixtures("quick_rehearsals")
@pytest.mark.parametrize("words", quick_every(2, [["estimate", "job.toml"], ["fit", "job.toml", "--gpu-type", "4090"]]))
def test_the_command_that_is_named_is_asked_once_and_answers_from_then_on(words, folder, runs) -> None:
    pytest.importorskip("torch")
    named = vramtop(*words, code=3).err.removeprefix("vramtop: not rehearsed: vramtop ").partition(" runs ")[0]
    vramtop(*named.split(), code=0)
    assert runs() == 1
    assert "the program rehearsed" in vramtop(*words, code=0).out
    assert runs() == 1


@pytest.mark.usefixtures("quick_rehearsals")
def test_a_rehearsal_that_is_not_kept_runs_once_and_is_the_answer(folder, runs) -> None:
    pytest.importorskip("torch")
    (folder / "cache").write_text("a file where the folder should be")
    out = " ".join(vramtop("fit", "--rehearse", "--gpu-type", "4090", "job.toml").out.split())
    assert runs() == 1
    assert "1,049,600 parameters" in out


@needs_root
@pytest.mark.parametrize("theirs", ["train.py", "python", "job.toml", "run.sh"])
@pytest.mark.parametrize(
    "line",
    [
        "rehearse JOB",
        "fit --rehearse JOB --gpu-type 4090",
        "rehearse -- {folder}/python train.py",
        "rehearse run.sh",
        "rehearse -- bash outer.sh",
    ],
)
def test_another_users_program_never_runs(theirs: str, line: str, folder: Path, runs: Callable[[], int]) -> None:
    if (theirs == "job.toml" and "JOB" not in line) or (theirs == "run.sh" and ".sh" not in line):
        pytest.skip("it is not named")
    (folder / "run.sh").write_text(f"{folder}/python train.py\n")
    (folder / "outer.sh").write_text("bash run.sh\n")
    os.chown(folder / theirs, NOBODY, NOBODY)
    err = vramtop(*line.format(folder=folder).replace("JOB", "job.toml").split(), code=2).err
    assert err.startswith(f"vramtop: {folder}/{theirs} belongs to nobody: vramtop rehearses only")
    assert runs() == 0


def test_a_job_file_without_a_program_is_not_rehearsed(folder: Path) -> None:
    (folder / "job.toml").write_text('[model]\nid = "gpt2"\n')
    assert "job.toml has no [program] to rehearse" in vramtop("rehearse", "job.toml", code=2).err
