"""Origins of real processes."""

import os
import pty
import signal
from pathlib import Path

import psutil
import pytest
from waiting import until

from vramtop.monitor.anomalies import anomaly
from vramtop.monitor.anomalies.anomaly import ProcessOrigin, read_origin

FORKS = "import os, time\npid = os.fork()\nos.write(1, str(os.getpid()).encode() + bytes([10]))\ntime.sleep(60)"


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def origin(pid: int) -> ProcessOrigin:
    found = read_origin(pid, psutil.Process(pid).create_time())
    assert found is not None
    return found


@pytest.fixture
def run_processes(start_python) -> list[int]:
    """A process with RANK=3 and its fork."""
    process = start_python(
        FORKS, env={**os.environ, "RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    )
    return sorted(int(process.stdout.readline()) for _ in range(2))


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


def test_a_rank_that_is_not_a_number_is_ignored(start_program) -> None:
    environ = {**os.environ, "RANK": "9" * 5000, "PMI_RANK": "²", "SLURM_PROCID": "2"}
    process = start_program(["sleep", "60"], env=environ)
    until(lambda: comm(process.pid) == "sleep" and origin(process.pid).environment is not None)
    assert origin(process.pid).rank == 2


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
    monkeypatch.setattr(anomaly, "_INIT_PROGRAMS", (takes_in,))
    assert origin(child).orphan
    monkeypatch.setattr(anomaly, "_INIT_PROGRAMS", (f"not {takes_in}",))
    assert not origin(child).orphan


def test_a_process_with_a_terminal_is_no_orphan(monkeypatch: pytest.MonkeyPatch, start_program) -> None:
    monkeypatch.setattr(anomaly, "_INIT_PROGRAMS", (comm(os.getpid()),))
    assert origin(start_program(["sleep", "60"]).pid).orphan
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
