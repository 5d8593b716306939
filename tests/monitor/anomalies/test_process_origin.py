"""Origins of real processes."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import until

from vramtop.monitor.anomalies import process_origin
from vramtop.monitor.anomalies.process_origin import ProcessOrigin, read_origin

FORKS = "import os, time\npid = os.fork()\nos.write(1, str(os.getpid()).encode() + bytes([10]))\ntime.sleep(60)"


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def origin(pid: int) -> ProcessOrigin:
    found = read_origin(pid, psutil.Process(pid).create_time())
    assert found is not None
    return found


@pytest.fixture
def run_processes() -> Iterator[list[int]]:
    """A process with RANK=3 and its fork."""
    environ = {**os.environ, "RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    with subprocess.Popen([sys.executable, "-c", FORKS], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = sorted(int(process.stdout.readline()) for _ in range(2))
        yield pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_fork_has_its_parents_environment_and_rank(run_processes: list[int]) -> None:
    parent, child = (origin(pid) for pid in run_processes)
    assert parent.rank == child.rank == 3
    assert parent.environment == child.environment is not None
    assert parent.on_mig
    assert child.ancestors[:2] == (run_processes[0], os.getpid())
    assert 1 not in child.ancestors
    mine = origin(os.getpid())
    assert mine.environment not in (None, parent.environment)
    assert not mine.on_mig


def test_a_rank_that_is_not_a_number_is_ignored() -> None:
    environ = {**os.environ, "RANK": "9" * 5000, "PMI_RANK": "²", "SLURM_PROCID": "2"}
    with subprocess.Popen(["sleep", "60"], env=environ) as process:  # noqa: S607
        until(lambda: comm(process.pid) == "sleep" and origin(process.pid).environment is not None)
        assert origin(process.pid).rank == 2
        process.kill()


def test_a_reused_pid_has_no_origin(run_processes: list[int]) -> None:
    started = psutil.Process(run_processes[0]).create_time()
    assert read_origin(run_processes[0], started + 5) is None
    assert read_origin(run_processes[0], None) is None
    assert read_origin(2**22 - 1, started) is None


def test_a_process_whose_parent_has_ended_is_an_orphan_if_init_adopts_it(run_processes, monkeypatch) -> None:
    parent, child = run_processes
    assert not origin(child).orphan
    os.kill(parent, signal.SIGKILL)
    until(lambda: psutil.Process(child).ppid() != parent)
    takes_in = comm(psutil.Process(child).ppid())
    monkeypatch.setattr(process_origin, "_INIT_PROGRAMS", (takes_in,))
    assert origin(child).orphan
    monkeypatch.setattr(process_origin, "_INIT_PROGRAMS", (f"not {takes_in}",))
    assert not origin(child).orphan


def test_a_process_with_a_terminal_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_origin, "_INIT_PROGRAMS", (comm(os.getpid()),))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as without:  # noqa: S607
        assert origin(without.pid).orphan
        without.kill()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("sleep", ["sleep", "60"])  # noqa: S606, S607
    try:
        until(lambda: comm(pid) == "sleep")
        assert not origin(pid).orphan
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
