"""Giving up: what Ctrl-C and a killed command leave behind. Real processes, a real trace."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch and transformers")
COMMAND = [sys.executable, "-m", "vramtop.tui.cli", "estimate", "meta-llama/Llama-3.1-8B", "--method", "traced"]


@pytest.fixture
def tracing(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", psutil.Process]]:
    """The command at work, and its worker."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as command:
        try:
            yield command, worker_of(command.pid)
        finally:
            command.kill()


def worker_of(pid: int) -> psutil.Process:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            try:
                if child.cmdline()[-1:] and child.cmdline()[-1].endswith("worker/__main__.py"):
                    return child
            except psutil.Error:
                continue
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(process: psutil.Process) -> bool:
    """Zombies have ended: whoever reaps them in a container may not."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_ctrl_c_ends_the_command_and_its_worker_without_a_traceback(tracing) -> None:
    command, worker = tracing
    time.sleep(0.5)  # into its imports
    command.send_signal(signal.SIGINT)
    said, complained = command.communicate(timeout=10)
    assert (command.returncode, said, complained) == (130, b"", b"")
    assert has_ended(worker)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_does_not_outlive_the_command(tracing, end) -> None:
    command, worker = tracing
    time.sleep(0.5)
    command.send_signal(end)
    command.wait(10)
    until(lambda: has_ended(worker))
