"""Ctrl-C and a killed command leave no worker behind, with real processes and a real trace."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from waiting import until

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch and transformers")
COMMAND = [sys.executable, "-m", "vramtop.tui.cli", "estimate", "meta-llama/Llama-3.1-8B", "--method", "traced"]


@pytest.fixture
def tracing(tmp_path: Path, start_program) -> tuple["subprocess.Popen[bytes]", psutil.Process]:
    """The running command and its worker."""
    command = start_program(COMMAND, text=False, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    return command, worker_of(command.pid)


def worker_of(pid: int) -> psutil.Process:
    """Return the worker process once it imports torch."""
    found: list[psutil.Process] = []

    def is_importing_torch() -> bool:
        found[:] = [child for child in psutil.Process(pid).children() if imports_torch(child)]
        return bool(found)

    until(is_importing_torch)
    return found[0]


def imports_torch(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()  # empty for a moment while it starts
        is_worker = bool(words) and words[-1].endswith("worker/__main__.py")
        return is_worker and any("/torch/" in mapped.path for mapped in process.memory_maps())
    except psutil.Error:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Return True if the process has ended; a zombie has, since a container may have no process that reaps it."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_ctrl_c_ends_the_command_and_its_worker_without_a_traceback(tracing) -> None:
    command, worker = tracing
    command.send_signal(signal.SIGINT)
    said, complained = command.communicate(timeout=60)
    assert (command.returncode, said, complained) == (130, b"", b"")
    assert has_ended(worker)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_does_not_outlive_the_command(tracing, end) -> None:
    command, worker = tracing
    command.send_signal(end)
    command.wait(60)
    until(lambda: has_ended(worker))


def test_ctrl_c_while_modules_are_loaded_leaves_no_traceback() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "vramtop.tui.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
import vramtop.tui.cli
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, b"", b"")
