"""Details of real processes: nothing secret, everything with its reason."""

import os

import psutil
import pytest
from waiting import until

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.monitor.host.inspect.process_details import read_cgroup, read_details

PROGRAM = "import sys, tempfile; f = tempfile.TemporaryFile(); print('ready', flush=True); input()"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123"  # noqa: S105 - made up
HIDDEN = "***"


@pytest.fixture
def program(tmp_path, start_python):
    """A program with a secret in its environment and on its command line, and with open files."""
    environ = {**os.environ, "HF_TOKEN": TOKEN, "MY_PASSWORD": "correct-horse-9", "CUDA_VISIBLE_DEVICES": "0,1"}
    kept = tmp_path / "data.bin"
    kept.write_bytes(b"x")
    words = ("--hub_token", TOKEN, "\x1b]0;evil\x07--lr=1")
    with kept.open() as opened:
        child = start_python(PROGRAM, *words, env=environ, cwd=tmp_path, pass_fds=[opened.fileno()])
    child.stdout.readline()
    return child


def test_everything_about_a_process_is_read_without_secrets(program, tmp_path):
    details = read_details(program.pid)
    assert details.folder == str(tmp_path)
    assert details.arguments[-3:] == ("--hub_token", HIDDEN, "--lr=1")
    assert details.environment["HF_TOKEN"] == details.environment["MY_PASSWORD"] == HIDDEN
    assert details.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert TOKEN not in repr(details)
    assert details.parents[0].pid == os.getpid()


def test_a_process_that_cannot_be_read_is_one_sentence(program):
    with pytest.raises(CannotTellError, match="is now a different process"):
        read_details(program.pid, start_time=1.0)
    program.kill()
    until(lambda: psutil.Process(program.pid).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(CannotTellError, match="zombie"):
        read_details(program.pid)
    program.wait()
    with pytest.raises(InputError, match="There is no process"):
        read_details(program.pid)


def test_the_lowest_limit_of_the_control_groups_above_counts(tmp_path):
    own = tmp_path / "proc" / "4711"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("0::/slurm/job_7\n")
    top = tmp_path / "cgroup" / "slurm"
    (top / "job_7").mkdir(parents=True)
    (top / "job_7" / "memory.max").write_text("max\n")
    (top / "memory.max").write_text(f"{3 * 2**30}\n")
    (top / "job_7" / "memory.current").write_text(f"{2**30}\n")
    (top / "cpu.max").write_text("250000 100000\n")
    facts = read_cgroup(4711, tmp_path / "cgroup", tmp_path / "proc")
    assert (facts.path, facts.memory_limit_bytes, facts.memory_bytes) == ("/slurm/job_7", 3 * 2**30, 2**30)
    assert (facts.cpu_limit, facts.tasks_limit) == (2.5, None)
    assert read_cgroup(4712, tmp_path / "cgroup", tmp_path / "proc") is None
    (own / "cgroup").write_text("4:memory:/slurm/job_7\n2:cpu,cpuacct:/\n0::/\n")  # of version 1
    assert read_cgroup(4711, tmp_path / "cgroup", tmp_path / "proc").path == "/slurm/job_7"
