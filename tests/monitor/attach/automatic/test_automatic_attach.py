"""Training processes are attached to by themselves: real processes, read by the real worker."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot
from waiting import until

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import Limit
from vramtop.monitor.attach.automatic import read_job
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.attach.automatic.worker_client import ReadRequest
from vramtop.monitor.board.board import AttachProgress, Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.process_info import read_process
from vramtop.monitor.snapshot.snapshot import Source, WatchedJob

LLAMA = {"model_name_or_path": "meta-llama/Llama-3.1-8B"}
SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(120)\n"
RANKS = """\
import os, subprocess, sys
script = next(at for at, word in enumerate(sys.argv) if word.endswith(".py"))
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[script:]], env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in range(2)
]
[rank.wait() for rank in ranks]
"""  # noqa: E501


class Machine:
    """A watchlist that attaches by itself to real processes, which a made snapshot shows on a GPU."""

    def __init__(self, watchlist: Watchlist | None = None, **options: Any) -> None:
        def estimated_here(job: Any) -> Any:
            raise CannotTellError("the worker estimates")

        self.watchlist = watchlist or Watchlist(estimate=estimated_here)
        self.attach = AutomaticAttach(self.watchlist, **options)
        self.attach.start()
        self.time = 2_000.0

    def show(self, *pids: int, source: Source | None = None, **facts: Any) -> Board:
        """Take a snapshot with these processes, as the sampler does."""
        self.time += 1
        processes = [self._process_of(pid, used=10 * (at + 1), **facts) for at, pid in enumerate(pids)]
        changes = {"source": source} if source else {}
        board = self.watchlist.update(make_snapshot([make_gpu(0, processes)], time=self.time, **changes))
        self.attach.observe(board)
        return board

    def read(self, *pids: int, **facts: Any) -> Board:
        """Take a snapshot, wait until everything is read, and return the board after that."""
        self.show(*pids, **facts)
        until(self.attach.finished.is_set)
        return self.show(*pids, **facts)

    def _process_of(self, pid: int, *, used: float, **facts: Any) -> Any:
        real = psutil.Process(pid)
        seen = {"start_time": real.create_time(), "command": " ".join(real.cmdline()), "parent": real.ppid()}
        return make_process(pid=pid, used=used, **{**seen, **facts})


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Callable[..., Machine]:
    def make(**options: Any) -> Machine:
        made = Machine(**options)
        request.addfinalizer(made.attach.close)
        return made

    return make


def test_all_ranks_of_a_run_get_their_budget_from_one_reading(machine, start, script, flags, tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(RANKS)
    launcher = start([sys.executable, "torchrun", script(SLEEPS), *flags(**LLAMA)], ready=2)
    ranks = [child.pid for child in psutil.Process(launcher).children()]
    here = machine()
    first = here.show(*ranks)
    assert {row.no_budget_reason for row in first.processes} == {"reading…"}
    board = here.read(*ranks)
    assert board.attach_progress == AttachProgress(read=1, total=1)
    run = board.run_of(board.processes[0].process.key)
    assert {key[0] for key in run.pids} == set(ranks)
    assert run.missing == ()
    assert all(row.budget is not None and row.no_budget_reason is None for row in board.processes)
    candidate = here.attach.candidate(board.processes[0].process.key)
    other = here.attach.candidate(board.processes[1].process.key)
    assert candidate.readings + other.readings == 1
    assert here.attach.known[board.processes[0].process.key].reading.job() == run.job


def test_an_incomplete_run_says_what_is_missing_and_never_diverges(machine, start, script, flags) -> None:
    words = flags(**LLAMA)[:-2]
    here = machine()
    board = here.read(start([sys.executable, script(SLEEPS), *words]))
    row = board.processes[0]
    assert row.has_guessed_budget
    assert row.missing == ("training.sequence_length",)
    assert row.comparison.status == "incomplete"
    assert "missing: sequence length" in row.comparison.sentence


def test_a_program_that_does_not_say_what_it_trains_is_no_run(machine, start, script) -> None:
    generates = (
        "from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('gpt2').generate()\n"
    )
    board = machine().read(start([sys.executable, script(f"{SLEEPS}{generates}")]))
    assert (board.runs, board.processes[0].no_budget_reason) == ((), "job not read")


def test_processes_are_read_though_the_current_folder_was_removed(machine, start, script, flags, tmp_path, monkeypatch):
    pid = start([sys.executable, script(SLEEPS), *flags(**LLAMA)])
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    assert machine().read(pid).processes[0].budget is not None


def test_one_bad_process_does_not_stop_the_others(machine, start, script, flags) -> None:
    good = start([sys.executable, script(SLEEPS), *flags(**LLAMA)])
    no_file = start([sys.executable, "-c", SLEEPS])
    huge = start([sys.executable, "train.py", "--note", "x" * 100_000, *flags(**LLAMA)])
    many = start([sys.executable, "-c", SLEEPS, *["x"] * 100_000])
    full = start([sys.executable, "train.py"], **{f"V{number}": "x" * 100_000 for number in range(15)})
    ended = start([sys.executable, "-c", "print('ready')"])
    here = machine()
    processes = [here._process_of(pid, used=9 - at) for at, pid in enumerate((no_file, huge, many, full, good))]
    gone = make_process(pid=ended, used=20, start_time=12.0, command="python train.py")
    board = here.watchlist.update(make_snapshot([make_gpu(0, [gone, *processes])]))
    here.attach.observe(board)
    until(here.attach.finished.is_set)
    rows = here.watchlist.rebuild_board().processes
    assert [row.no_budget_reason for row in rows] == ["ended", "unreadable", None, "too long", "too long", None]
    with pytest.raises(CannotTellError, match="its command line has more than 5,000 arguments"):
        read_process(many)


def test_a_reading_that_takes_too_long_is_given_up(start, script, flags, monkeypatch) -> None:
    pid = start([sys.executable, script(SLEEPS), *flags(**LLAMA)])
    request = ReadRequest(pid=pid, start_time=None, on_gpu=(), gpu_name=None, gpu_bytes=None, folder="/")
    assert read_job.answer(request).reason is None
    monkeypatch.setattr(read_job, "PROCESS_READING", Limit(what="reading it", seconds=1e-4))
    given_up = read_job.answer(request)
    assert (given_up.reason, given_up.sentence) == (
        "too slow",
        f"Process {pid} is not read: reading it took more than 0.0001 s.",
    )


def test_nothing_is_read_of_a_recording_or_with_no_attach(machine, start, script, flags) -> None:
    pid = start([sys.executable, script(SLEEPS), *flags(**LLAMA)])
    recording = machine().read(pid, source=Source(kind="recording"))
    assert (recording.runs, recording.attach_progress) == ((), None)
    assert recording.processes[0].no_budget_reason is None
    kernel = machine().read(pid, source=Source(kind="recording"), command="python3 -m ipykernel_launcher -f k.json")
    assert kernel.processes[0].no_budget_reason == "notebook"
    off = machine(enabled=False).read(pid)
    assert (off.runs, off.processes[0].no_budget_reason) == ((), "not attached")


@pytest.mark.slow  # the worker is started twice
def test_a_run_that_the_user_attached_to_is_never_replaced(machine, start, script, flags) -> None:
    pid = start([sys.executable, script(SLEEPS), *flags(**LLAMA)])
    here = machine()
    board = here.read(pid)
    budget = make_budget(device=70)
    here.watchlist.set_budget(budget)
    here.watchlist.add_run(WatchedJob(job=budget.job, pids=board.runs[0].pids))
    row = here.read(pid, command="python other.py").processes[0]  # as if it executed another program
    assert row.budget is budget


@pytest.mark.slow  # the worker is started twice
def test_a_run_that_is_dismissed_stays_dismissed(machine, start, script, flags) -> None:
    pid = start([sys.executable, script(SLEEPS), *flags(**LLAMA)])
    here = machine()
    here.watchlist.dismiss_runs(here.read(pid).runs[0].pids)
    here.read(pid)
    board = here.read(pid)
    assert (board.runs, board.processes[0].no_budget_reason) == ((), "left alone")
