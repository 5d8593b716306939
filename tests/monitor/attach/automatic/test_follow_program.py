"""The runs of one command are followed without a screen, and become measurements."""

import os
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest
from builders import ScriptedSource, make_budget, make_gpu, make_process, make_snapshot

from vramtop.estimator.common.records import replace
from vramtop.monitor.attach.automatic import automatic_attach
from vramtop.monitor.attach.automatic.follow_program import follow
from vramtop.monitor.attach.automatic.start_following import start_following
from vramtop.monitor.history.history import History
from vramtop.monitor.history.run_recorder import THREAD, RunRecorder
from vramtop.monitor.snapshot.snapshot import ProcessCounters

GIB = 2**30


@pytest.fixture
def command(start_python) -> tuple[int, float]:
    process = start_python("input()")
    return process.pid, psutil.Process(process.pid).create_time()


def test_the_processes_of_the_command_alone_are_followed_to_their_end(command, tmp_path, monkeypatch) -> None:
    from vramtop.estimator.job.job import Job, ModelSpec
    from vramtop.monitor.snapshot.snapshot import WatchedJob

    pid, start = command
    job = Job(model=ModelSpec(id="gpt2"))
    seen: list[set[int]] = []

    class Attach(automatic_attach.AutomaticAttach):
        def __init__(self, watchlist: Any, *, recorder: RunRecorder) -> None:
            super().__init__(watchlist, enabled=False, recorder=recorder)
            watchlist.add_run(WatchedJob(job=job, pids=(command,)), make_budget(job))

        def observe(self, board: Any) -> None:
            assert self.settings == settings
            super().observe(board)
            seen.append({row.process.pid for row in board.processes})

    monkeypatch.setattr("vramtop.monitor.attach.automatic.follow_program.AutomaticAttach", Attach)
    counters = ProcessCounters(time=1.0, steps=3, reserved_bytes=35 * GIB, reserved_peak_bytes=35 * GIB)
    own, other = make_process(pid, 38, start_time=start, counters=counters), make_process(1, 20, start_time=start)
    busy, empty = make_snapshot([make_gpu(0, [own, other])]), make_snapshot([make_gpu(0, [other])])
    source = ScriptedSource([busy, busy, replace(empty, time=2_010.0), replace(empty, time=2_011.0)])
    alive = {"now": True}

    def wait(_: float) -> None:
        alive["now"] = source.reads < 2

    history = History(tmp_path / "history.json")
    recorder = RunRecorder(history=lambda: history)
    settings = {"training.sequence_length": 96}
    follow(command, source, recorder, wait=wait, is_running=lambda _: alive["now"], settings=settings)
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    assert seen == [{pid}, {pid}, set(), set(), set()]
    (run,) = history.list()
    assert (run.state, run.observed.device_bytes) == ("ended", 38 * GIB)


def test_a_pipe_of_the_command_ends_with_the_command() -> None:
    """Whoever reads the command's standard error waits until everybody has let go of it."""
    program = (
        "import os\nfrom vramtop.monitor.attach.automatic.start_following import start_following\n"
        "start_following(os.getpid(), os.environ)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True, timeout=60)
    assert ran.stderr == b""


def test_what_hinders_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    start_following(os.getpid(), {})
