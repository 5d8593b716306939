"""Termination of real processes: obedient, stubborn and protected ones."""

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from waiting import until

from vramtop.monitor.host.process_directory import ProcessDirectory
from vramtop.monitor.host.terminate import (
    GRACE_SECONDS,
    NotTerminatedError,
    ProcessTermination,
    TerminationBatch,
    is_kernel_thread,
    refusal_reason,
)
from vramtop.monitor.snapshot.snapshot import GpuProcess, Source

STUBBORN = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
SLEEPY = "import time; print(flush=True); time.sleep(60)"
ECHO = "import sys\nprint(flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)"
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture
def start(start_python):
    """Start a Python program, and wait for its print."""

    def run(program: str, **options) -> subprocess.Popen:
        process = start_python(program, text=False, **options)
        process.stdout.readline()
        return process

    return run


@pytest.fixture(params=["pidfd", "pid"])
def signal_method(request, monkeypatch):
    """Run the test with pidfds and as on systems without them."""
    if request.param == "pidfd" and not hasattr(os, "pidfd_open"):
        pytest.skip("this Python has no pidfds")
    if request.param == "pid":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return request.param


def make_reading(pid: int, **changes) -> GpuProcess:
    """A process as the monitor reads it."""
    facts = ProcessDirectory().describe(pid)
    known = {"start_time": facts.start_time, "user": facts.user, "command": facts.command} | changes
    return GpuProcess(pid=pid, used_bytes=2**30, kinds=("compute",), **known)


def wait_for_end(ending: ProcessTermination) -> None:
    until(lambda: ending.ended)


def test_sigterm_ends_a_process_and_its_end_is_noticed(signal_method, start):
    now = [100.0]
    process = start(SLEEPY)
    ending = ProcessTermination(make_reading(process.pid), clock=lambda: now[0])
    assert not ending.ended
    assert not ending.is_other_users
    ending.send()
    now[0] += 3
    wait_for_end(ending)
    now[0] += 3
    assert ending.sent == signal.SIGTERM
    assert ending.seconds == 3
    assert process.wait() == -signal.SIGTERM
    ending.close()


def test_a_zombie_has_ended(signal_method, start):
    process = start(SLEEPY)
    shown = make_reading(process.pid)
    ending = ProcessTermination(shown)
    process.send_signal(signal.SIGKILL)
    wait_for_end(ending)  # it has not been reaped
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    with pytest.raises(NotTerminatedError, match=f"Process {process.pid} has ended already; no signal was sent"):
        ending.send()
    assert ending.sent is None
    with pytest.raises(NotTerminatedError, match="has ended already"):
        ProcessTermination(shown)


def test_a_process_is_overdue_after_the_grace_period_and_sigkill_ends_it(signal_method, start):
    now = [100.0]
    process = start(STUBBORN)
    ending = ProcessTermination(make_reading(process.pid), clock=lambda: now[0])
    ending.send()
    now[0] += GRACE_SECONDS - 0.1
    assert not ending.overdue
    now[0] += 0.2
    assert ending.overdue
    assert process.poll() is None
    ending.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert ending.ended


def test_another_process_with_the_pid_is_not_ended(signal_method, start):
    process = start(SLEEPY)
    shown = make_reading(process.pid)
    with pytest.raises(NotTerminatedError, match="is now a different process: the one that was shown has ended"):
        ProcessTermination(make_reading(process.pid, start_time=shown.start_time - 1))
    assert process.poll() is None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="only root can have a pid used again")
def test_a_process_that_has_taken_over_the_pid_is_not_ended(signal_method, start):
    first = start(SLEEPY)
    ending = ProcessTermination(make_reading(first.pid))
    first.kill()
    first.wait()
    for _ in range(20):
        LAST_PID.write_text(str(first.pid - 1))
        second = start(ECHO, stdin=subprocess.PIPE)
        if second.pid == first.pid:
            break
    else:
        pytest.skip("others were quicker to take the pid")
    with pytest.raises(NotTerminatedError):
        ending.send()
    second.stdin.write(b"alive\n")
    second.stdin.flush()
    assert second.stdout.readline() == b"alive\n"  # a signal would have arrived first
    second.stdin.close()


def test_vramtop_and_its_ancestors_are_never_ended():
    for pid in (os.getpid(), os.getppid()):
        with pytest.raises(
            NotTerminatedError, match="is vramtop itself or started it" if pid > 1 else "parent of all others"
        ):
            ProcessTermination(make_reading(pid))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_users_process_is_recognised_and_cannot_be_ended_without_permission(signal_method, start):
    mine = start(SLEEPY)
    shown = make_reading(mine.pid)
    with subprocess.Popen(["/bin/sleep", "60"], user=65534) as theirs:
        assert ProcessTermination(make_reading(theirs.pid)).is_other_users
        theirs.kill()
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(NotTerminatedError, match=f"No permission to end process {mine.pid}: it belongs to root"):
            ProcessTermination(shown)
    finally:
        os.setresuid(0, 0, 0)
    assert mine.poll() is None


def test_a_stopped_process_is_named_as_the_blocker(signal_method, start):
    process = start(SLEEPY)
    ending = ProcessTermination(make_reading(process.pid))
    process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    assert ending.blocker == "stopped"
    ending.send()
    assert not ending.ended
    process.send_signal(signal.SIGCONT)
    wait_for_end(ending)


def test_inside_a_container_a_pid_without_gpu_file_is_uncertain(start, monkeypatch, tmp_path):
    process = start(SLEEPY)
    assert Path("/proc/self/ns/pid").stat().st_ino != 1
    monkeypatch.setattr("vramtop.monitor.host.terminate.HOST_PID_NAMESPACE", 1)  # another namespace, as in a container
    assert "no GPU device file open" in ProcessTermination(make_reading(process.pid)).uncertainty
    file = tmp_path / "nvidia0"
    with file.open("w") as opened:
        monkeypatch.setattr("vramtop.monitor.host.terminate._GPU_FILE", re.compile(str(file)))
        holder = start(SLEEPY, stdin=opened)
        assert ProcessTermination(make_reading(holder.pid)).uncertainty is None


def test_in_the_host_pid_namespace_a_pid_is_certain(start, monkeypatch):
    inode = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr("vramtop.monitor.host.terminate.HOST_PID_NAMESPACE", inode)
    assert ProcessTermination(make_reading(start(SLEEPY).pid)).uncertainty is None


def test_kernel_threads_are_recognised():
    assert not is_kernel_thread(os.getpid())
    threads = [process.pid for process in psutil.process_iter() if process.ppid() == 2]
    if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n":
        assert is_kernel_thread(2)
        assert all(map(is_kernel_thread, threads))


@pytest.mark.parametrize("kind", ["recording", "demo"])
def test_processes_of_a_recording_are_never_ended(kind):
    assert "recording" in refusal_reason(Source(kind=kind))
    assert refusal_reason(Source(kind="nvml")) is None


def test_a_batch_signals_what_it_may_and_says_why_it_refuses_the_rest(signal_method, start):
    first, second, third = start(SLEEPY), start(SLEEPY), start(SLEEPY)
    reused = make_reading(third.pid, start_time=1.0)
    batch = TerminationBatch([make_reading(first.pid), make_reading(second.pid), reused, make_reading(os.getpid())])
    assert [member.process.pid for member in batch.running] == [first.pid, second.pid]
    assert "is now a different process" in batch.refused[reused.key]
    assert "is vramtop itself" in batch.refused[make_reading(os.getpid()).key]
    batch.send(signal.SIGINT)
    for member in batch.members:
        wait_for_end(member)
    assert [process.wait() for process in (first, second)] == [-signal.SIGINT] * 2
    assert batch.running == []
    assert third.poll() is None
    batch.close()


def test_a_process_that_ends_before_the_signal_does_not_keep_the_others_from_getting_it(signal_method, start):
    gone, alive = start(SLEEPY), start(SLEEPY)
    batch = TerminationBatch([make_reading(gone.pid), make_reading(alive.pid)])
    gone.kill()
    gone.wait()
    batch.send(signal.SIGKILL)
    assert alive.wait() == -signal.SIGKILL
    wait_for_end(batch.members[1])
    assert batch.running == []
    batch.close()
