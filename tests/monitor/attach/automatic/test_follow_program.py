"""The runs of one command are followed without a screen, and become measurements."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until

from vramtop.monitor.attach.automatic import automatic_attach
from vramtop.monitor.attach.automatic.follow_program import follow
from vramtop.monitor.attach.automatic.start_following import start_following
from vramtop.monitor.history.history import History
from vramtop.monitor.history.recorder import THREAD, RunRecorder
from vramtop.monitor.snapshot.snapshot import ProcessCounters

GIB = 2**30


@pytest.fixture
def command() -> Iterator[tuple[int, float]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid, psutil.Process(process.pid).create_time()
    process.communicate()


def test_the_processes_of_the_command_alone_are_followed_to_their_end(
    command: tuple[int, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_snapshot: Any,
    make_gpu: Any,
    make_process: Any,
    make_budget: Any,
    scripted_source: Any,
) -> None:
    from vramtop.estimator.job.job import Job, ModelSpec
    from vramtop.monitor.snapshot.snapshot import WatchedJob

    pid, start = command
    job = Job(model=ModelSpec(id="gpt2"))
    seen: list[set[int]] = []

    class Attach(automatic_attach.AutomaticAttach):
        def __init__(self, watchlist: Any) -> None:
            super().__init__(watchlist, enabled=False)
            watchlist.add_run(WatchedJob(job=job, pids=(command,)), make_budget(job))

        def observe(self, board: Any) -> None:
            seen.append({row.process.pid for row in board.processes})

    monkeypatch.setattr("vramtop.monitor.attach.automatic.follow_program.AutomaticAttach", Attach)
    counters = ProcessCounters(time=1.0, steps=3, reserved_bytes=35 * GIB, reserved_peak_bytes=35 * GIB)
    own, other = make_process(pid, 38, start_time=start, counters=counters), make_process(1, 20, start_time=start)
    busy, empty = make_snapshot([make_gpu(0, [own, other])]), make_snapshot([make_gpu(0, [other])])
    source = scripted_source([busy, busy, replace(empty, time=2_010.0), replace(empty, time=2_011.0)])
    alive = {"now": True}

    def wait(_: float) -> None:
        alive["now"] = source.reads < 2

    history = History(tmp_path / "history.sqlite3")
    recorder = RunRecorder(history=lambda: history)
    follow(command, source, recorder, wait=wait, is_running=lambda _: alive["now"])
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    assert seen == [{pid}, {pid}, set(), set(), set()]
    (run,) = history.list()
    assert (run.state, run.observed.device_bytes) == ("ended", 38 * GIB)


@pytest.mark.slow
def test_it_is_no_child_of_the_command_and_ends_without_a_driver(start: Callable[..., int], tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from vramtop.monitor.attach.automatic.start_following import start_following\n"
        "start_following(os.getpid(), os.environ)\n"
        "try:\n    os.wait()\n    print('ready, with a child')\n"
        "except ChildProcessError:\n    print('ready')\n"
        "sys.stdout.flush(); time.sleep(600)\n"
    )
    pid = start([sys.executable, "-c", program])
    name = "follow_program"

    def followers() -> list[int]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if words[-1:] == [str(pid)] and any(name in word for word in words):
                found.append(process.pid)
        return found

    until(lambda: not followers())
    assert psutil.Process(pid).children() == []


def test_what_hinders_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    start_following(os.getpid(), {})
