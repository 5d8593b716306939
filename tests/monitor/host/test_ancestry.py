"""Ancestors of real processes."""

import os
from collections.abc import Callable

import pytest

from vramtop.monitor.host import process_directory
from vramtop.monitor.host.known_programs import starts_sessions
from vramtop.monitor.host.process_directory import AncestryReader

LAUNCHER = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(child.pid, flush=True); child.wait()"
)


@pytest.fixture
def launch(start_python) -> Callable[[], tuple[int, int]]:
    """Return a function that starts a launcher with a child; it returns the pids of both."""

    def run() -> tuple[int, int]:
        launcher = start_python(LAUNCHER)
        return launcher.pid, int(launcher.stdout.readline())

    return run


def test_ancestors_are_read_up_to_the_one_that_starts_sessions(launch):
    launcher, child = launch()
    found = AncestryReader().read([launcher], [child])
    assert found[launcher].parent == os.getpid()
    assert "subprocess.Popen" in (found[launcher].command or "")
    assert os.getpid() in found
    assert 1 not in found
    assert not any(starts_sessions(ancestor.name) for ancestor in found.values())


def test_a_process_on_a_gpu_is_no_ancestor_to_be_read(launch):
    launcher, child = launch()
    assert set(AncestryReader().read([launcher], [child, os.getpid()])) == {launcher}


def test_what_is_known_of_an_ancestor_is_not_read_again(launch, monkeypatch):
    launcher, child = launch()
    reader = AncestryReader()
    first = reader.read([launcher], [child, os.getpid()])
    read: list[str] = []
    read_file = process_directory._read_file
    monkeypatch.setattr(process_directory, "_read_file", lambda path: read.append(path) or read_file(path))
    assert reader.read([launcher], [child, os.getpid()]) == first
    assert read == []


def test_an_ended_parent_is_no_ancestor():
    assert AncestryReader().read([2**22 - 1], []) == {}


@pytest.mark.parametrize("name", ["systemd", "sshd-session", "tmux: server", "containerd-shim"])
def test_what_starts_sessions_is_known_by_name(name: str):
    assert starts_sessions(name)
    assert not starts_sessions("torchrun")
    assert not starts_sessions(None)
