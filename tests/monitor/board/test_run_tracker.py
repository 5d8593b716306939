import os
from pathlib import Path

import psutil
import pytest
from builders import make_budget, make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.board import Board, ProcessRow, RunRow
from vramtop.monitor.board.endings import count_kernel_oom_kills
from vramtop.monitor.board.run_tracker import RunTracker
from vramtop.monitor.host.process_stat import is_running
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.snapshot import FinalCounters, ProcessCounters, ProcessKey, WatchedJob

JOB = Job(name="sft", model=ModelSpec(id="gpt2"))
KEY: ProcessKey = (7, 1_000.0)


class Machine:
    """One GPU with scripted processes; its readings are a second apart."""

    def __init__(self) -> None:
        self.alive = {KEY}
        self.time = 2_000.0
        self.kind = "nvml"
        self.last_words: tuple[FinalCounters, ...] = ()
        self.watchlist = make_watchlist(make_run(JOB, 7), is_running=lambda key: key in self.alive)

    def tick(self, used: float | None, *, readable: bool = True, **of: object) -> Board:
        """One reading; ``used`` None: the process is not on the GPU."""
        gpu_facts = {name: of.pop(name) for name in ("free_bytes", "faults") if name in of}
        rows = [] if used is None else [make_process(7, used, **of)]
        gpu = make_gpu(0, rows, **gpu_facts)
        gpu = gpu if readable else replace(gpu, processes=None)  # type: ignore[type-var]
        snapshot = make_snapshot([gpu], time=self.time, last_words=self.last_words)
        self.last_words = ()
        snapshot = replace(snapshot, source=replace(snapshot.source, kind=self.kind))  # type: ignore[attr-defined,type-var]
        self.time += 1
        return self.watchlist.update(snapshot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def only_run(board: Board) -> tuple[RunRow, ProcessRow]:
    (run,) = board.runs
    (row,) = run.rows
    return run, row


def status(row: ProcessRow) -> str:
    return row.comparison.status


def sentence(row: ProcessRow) -> str:
    return row.comparison.sentence


def test_a_process_observed_from_its_start_has_phase_starts_from_its_context_on(machine: Machine) -> None:
    board = machine.tick(None)
    assert board.runs[0].rows == ()
    for used in (2.6, 6.0, 10.0, 41.0):
        board = machine.tick(used)
    assert [mark.phase for mark in only_run(board)[1].phase_starts] == ["started", "context", "loading", "warming_up"]


def test_a_run_that_has_ended_stays_until_it_is_dismissed(machine: Machine) -> None:
    for used in (41, 42, 40):
        machine.tick(used)
    machine.alive.clear()
    ended = machine.tick(None)
    run, row = only_run(ended)
    assert (run.ended_at, row.ended_at, status(row)) == (2_003.0, 2_003.0, "ended")
    assert row.process.used_bytes == 40 * GIB
    assert row.comparison.observed_bytes is None
    assert sentence(row) == "has ended; held at most 42.0 GiB; the budget predicts 37.5 to 42.5"
    assert ended.ended_processes == (row,)
    assert ended.processes == ()
    for _ in range(200):  # longer than the history of other processes
        later = machine.tick(None)
    assert only_run(later)[0].ended_at == 2_003.0
    assert machine.watchlist.history.lifetime(row.key)
    machine.watchlist.dismiss_runs(run.pids)
    assert machine.tick(None).runs == ()
    for _ in range(200):
        machine.tick(None)
    assert not machine.watchlist.history.lifetime(row.key)


def test_a_process_that_frees_its_memory_has_not_ended(machine: Machine) -> None:
    machine.tick(41)
    run, row = only_run(machine.tick(None))
    assert run.ended_at is None
    assert status(row) == "ended"
    assert "no longer holds memory on GPU 0, but is still running" in sentence(row)
    run, row = only_run(machine.tick(41))
    assert (status(row), row.ended_at) == ("on_budget", None)


def test_processes_on_an_unreadable_gpu_have_not_ended(machine: Machine) -> None:
    machine.tick(41)
    run, row = only_run(machine.tick(None, readable=False))
    assert (run.ended_at, row.ended_at, status(row)) == (None, None, "unknown")
    assert status(only_run(machine.tick(41))[1]) == "on_budget"


def test_figures_from_before_a_hang_are_ignored(machine: Machine) -> None:
    for _ in range(3):
        _, row = only_run(machine.tick(40))
    assert status(row) == "on_budget"
    hangs = Fault(field=None, code=NO_ANSWER, message="the driver hangs on this GPU")
    for _ in range(3):
        _, row = only_run(machine.tick(80, faults=(hangs,)))
    assert status(row) == "unknown"
    assert row.comparison.observed_bytes is None
    assert row.comparison.peak_usage.size_bytes == 40 * GIB
    _, row = only_run(machine.tick(40))
    assert status(row) == "on_budget"


@pytest.mark.parametrize(
    ("said", "expected", "words"),
    [
        ({"error": "OutOfMemoryError", "ended": 2_000.5}, "out_of_memory", "has run out of memory, as torch itself"),
        ({"out_of_memory": 1, "out_of_memory_time": 1_990.0}, "out_of_memory", "has run out of memory"),
        ({"out_of_memory": 1, "out_of_memory_time": 1_200.0, "ended": 2_000.5}, "ended", "has finished"),
        ({"error": "KeyError", "ended": 2_000.5}, "ended", "was ended by KeyError"),
        ({}, "ended", "was killed, or crashed"),
    ],
)
def test_final_counters_state_how_a_run_ended(machine, said, expected, words) -> None:
    machine.tick(41, counters=ProcessCounters(time=2_000.0))
    machine.alive.clear()
    figures = ProcessCounters(time=2_000.5, **said)  # type: ignore[arg-type]
    machine.last_words = (FinalCounters(gpu=0, pid=7, start_time=1_000.0, counters=figures),)
    assert (status(only_run(machine.tick(None))[1]), machine.last_words) == (expected, ())
    row = only_run(machine.tick(None))[1]  # final counters are returned once
    assert status(row) == expected
    assert sentence(row).startswith(words)


@pytest.mark.parametrize(
    ("used", "ticks", "ending", "words"),
    [(70, 1, "out_of_memory", ": it has probably run out of memory"), (41, 40, "ended", "")],
    ids=["before the first step", "steady"],
)
def test_an_end_on_a_full_gpu_is_probably_out_of_memory_before_the_first_step(
    machine, used, ticks, ending, words
) -> None:
    for _ in range(ticks):
        machine.tick(used, free_bytes=GIB // 4)
    machine.alive.clear()
    row = only_run(machine.tick(None, free_bytes=79 * GIB))[1]
    assert status(row) == ending
    assert f"its GPU was nearly full then (0.2 GiB free){words}" in sentence(row)


def test_a_process_killed_for_lack_of_host_memory(machine: Machine) -> None:
    kills = iter([4, 4, 5, 5, 5])
    machine.watchlist._tracker = RunTracker(
        machine.watchlist.history, lambda _: bool(machine.alive), lambda: next(kills)
    )
    for _ in range(2):
        machine.tick(41)
    machine.alive.clear()
    for _ in range(2):
        row = only_run(machine.tick(None))[1]
        assert status(row) == "out_of_memory"
        assert "killed a process (probably this one) because host memory ran out" in sentence(row)


def test_oom_kills_are_read_from_the_kernels_counters(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 3\nunevictable_pgs_scanned 0\n")
    assert count_kernel_oom_kills(tmp_path / "vmstat") == 3
    (tmp_path / "vmstat").write_text("nr_free_pages 1\n")
    assert count_kernel_oom_kills(tmp_path / "vmstat") is None
    assert count_kernel_oom_kills(tmp_path / "nothing") is None


def test_a_process_that_disappears_from_a_recording_has_ended(machine: Machine) -> None:
    machine.kind = "recording"
    machine.tick(41)
    run, row = only_run(machine.tick(None))  # process 7 of this machine is irrelevant
    assert (run.ended_at, status(row)) == (2_001.0, "ended")


def test_a_replaced_job_keeps_its_place_and_gets_its_own_phases(machine: Machine) -> None:
    other = make_run("other", 8)
    machine.watchlist.add_run(other)
    for _ in range(50):
        machine.tick(41)
    larger = Job(name="larger")
    machine.watchlist.set_budget(make_budget(larger, device=60))
    machine.watchlist.add_run(make_run(larger, 7))
    assert [run.job.name for run in machine.watchlist.runs()] == ["larger", "other"]
    row = machine.tick(41).runs[0].rows[0]
    assert (status(row), row.comparison and row.comparison.phase) == ("warming_up", "warming_up")


def test_a_dismissed_run_of_a_recording_stays_dismissed(machine: Machine) -> None:
    recorded = WatchedJob(job=Job(name="theirs"), pids=((9, 1.0),))
    snapshot = make_snapshot([], watched=(recorded,))
    assert [run.job.name for run in machine.watchlist.update(snapshot).runs] == ["sft", "theirs"]
    machine.watchlist.dismiss_runs(recorded.pids)
    assert [run.job.name for run in machine.watchlist.update(snapshot).runs] == ["sft"]


def test_real_processes_run_until_they_end(start_python) -> None:
    child = start_python("input()")
    started = psutil.Process(child.pid).create_time()
    assert is_running((child.pid, started))
    assert is_running((child.pid, None))
    assert not is_running((child.pid, started - 10))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running((child.pid, started))  # a zombie
    child.wait()
    assert not is_running((child.pid, started))
