import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil
import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot
from screen_host import ScreenHost, opened
from textual.screen import Screen
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.attach.saved_answers import SavedAnswers, run_key
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import ProcessCounters, WatchedJob
from vramtop.tui.screens.attach.rank_table import RankTable
from vramtop.tui.screens.attach.screen import AttachScreen
from vramtop.tui.screens.step.screen import StepScreen


def estimate_forty(job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
    """An estimate of 40 GiB for one model, and an error for any other, such as a half-typed name."""
    if job.model.id != "meta-llama/Llama-3.1-8B":
        raise InputError(f"model {job.model.id!r} is not known")
    return make_budget(job, device=40)


@pytest.fixture
def watchlist() -> Watchlist:
    return Watchlist(estimate=estimate_forty)


@pytest.fixture
def training(start_script) -> psutil.Process:
    """A real training process whose command line has all settings except the sequence length."""
    flags = ["--model_name_or_path", "meta-llama/Llama-3.1-8B", "--per_device_train_batch_size", "2", "--bf16", "True"]
    return psutil.Process(start_script(*flags).pid)


@pytest.fixture
def board(training, watchlist):
    """The training process holds 41 GiB on GPU 0."""
    process = make_process(pid=training.pid, start_time=training.create_time(), used=41)
    return watchlist.update(make_snapshot([make_gpu(0, [process]), make_gpu(1)]))


@pytest.fixture
def attached(watchlist):
    """Opens the attach screen, and shows it a board."""

    def attached(*, shown: Board | None = None, size: tuple[int, int] = (120, 40), **options: Any):
        return opened(AttachScreen(watchlist, **{"estimate": estimate_forty, **options}), shown, size=size)

    return attached


def text_of(screen: Screen[None], selector: str) -> str:
    return " ".join(str(found.render()) for found in screen.query(selector) if found.is_mounted)


async def test_filling_in_the_missing_field_shows_the_budget_and_watches_the_job(attached, training, watchlist, board):
    async with attached(pid=training.pid, shown=board) as (screen, pilot):
        await until_shown(pilot, lambda: "sequence length is missing" in text_of(screen, "#problem"))
        assert f"pid {training.pid}" in text_of(screen, "#run")
        assert "GPU 0" in text_of(screen, "#run")
        assert "--per_device_train_batch_size on the command line" in text_of(
            screen, "#row-training-micro_batch .remark"
        )
        assert watchlist.runs() == ()
        await pilot.press("f5")
        assert pilot.app.screen is screen  # there is no step to draw yet
        await pilot.press(*"4096")
        await until_shown(pilot, lambda: [job.job.training.sequence_length for job in watchlist.runs()] == [4096])
        await until_shown(pilot, lambda: "within budget" in text_of(screen, "#bars"))
        assert "40.0 (37.5 to 42.5)" in text_of(screen, "#bars")
        assert text_of(screen, "#problem") == ""
        await pilot.press("f5")
        await until_shown(pilot, lambda: isinstance(pilot.app.screen, StepScreen))
    watched = watchlist.runs()[0]
    assert watched.pids == ((training.pid, training.create_time()),)
    assert watched.job.training.sequence_length == 4096
    assert watched.job.training.micro_batch == 2
    row = watchlist.update(board.snapshot).processes[0]
    assert row.budget is not None


async def test_answers_are_saved_for_the_command_line(training):
    async with opened(AttachScreen(Watchlist(estimate_forty), estimate=estimate_forty, pid=training.pid)) as (
        screen,
        pilot,
    ):
        await until_shown(pilot, lambda: bool(screen.query("JobForm Input:focus")))
        await pilot.press(*"512")
        run = run_key(read_run(training.pid))
        await until_shown(pilot, lambda: [answer.value for answer in SavedAnswers().load(run).values()] == [512])
    again = AttachScreen(Watchlist(estimate_forty), estimate=estimate_forty, pid=training.pid)
    async with ScreenHost(again).run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: "peak 40.0 GiB" in text_of(again, "#budget"))
        assert again.query_one("#row-training-sequence_length Input", Input).value == "512"
        assert "you, on 20" in text_of(again, "#row-training-sequence_length .remark")
        await pilot.press("f8")
        await until_shown(pilot, lambda: "sequence length is missing" in text_of(again, "#problem"))
        await until_shown(pilot, lambda: SavedAnswers().load(run_key(read_run(training.pid))) == {})


async def test_answers_that_cannot_be_saved_are_reported_in_one_sentence(attached, training, watchlist, tmp_path):
    (tmp_path / "file").write_text("")
    answers = SavedAnswers(tmp_path / "file" / "answers.json")
    async with attached(answers=answers, pid=training.pid) as (screen, pilot):
        await until_shown(pilot, lambda: bool(screen.query("JobForm Input:focus")))
        await pilot.press(*"512")
        await until_shown(pilot, lambda: "cannot be" in " ".join(n.message for n in pilot.app._notifications))
        await until_shown(pilot, lambda: [w.job.training.sequence_length for w in watchlist.runs()] == [512])


@pytest.fixture
def two_runs(training, watchlist):
    """Makes boards with two runs: two unreadable ranks on GPUs 0 and 1, and a readable process on GPU 2."""
    other = Job(name="other", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    mine = Job(name="mine", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    keys = tuple((999_999_000 + at, 1_000.0) for at in range(2))
    watchlist.add_run(WatchedJob(job=other, pids=keys))
    watchlist.add_run(WatchedJob(job=mine, pids=((training.pid, training.create_time()),)))
    times = iter(range(2_000, 3_000))

    def make(*sizes: float | None, **changes) -> Board:
        gpus = []
        for at, size in enumerate(sizes):
            key = keys[at] if at < 2 else (training.pid, training.create_time())
            process = make_process(pid=key[0], start_time=key[1], used=size, **changes)
            gpus.append(make_gpu(at, [process] if size is not None else []))
        return watchlist.update(make_snapshot(gpus, time=float(next(times))))

    return make


async def test_a_run_that_has_ended_stays_with_its_summary(attached, training, watchlist, two_runs):
    watchlist.is_running = lambda key: key[0] == training.pid
    async with attached(board=two_runs(40, 61, 41), pid=999_999_000) as (screen, pilot):
        await until_shown(pilot, lambda: "no process 999999000" in text_of(screen, "#problem"))
        screen.show_board(two_runs(None, None, 41))
        assert "ended" in text_of(screen, "#bars")
        assert "held at most 61.0 GiB" in text_of(screen, "#bars")
        assert "its whole run" in text_of(screen, "#legend")
        assert [run.job.label for run in watchlist.rebuild_board().runs] == ["other", "mine"]


@pytest.mark.slow
async def test_settings_read_from_a_run_stay_after_its_end(training, watchlist, board):
    known: dict = {}
    screen = AttachScreen(watchlist, estimate=estimate_forty, attached=known, board=board, pid=training.pid)
    app = ScreenHost(screen)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: bool(screen.query("JobForm Input:focus")))
        await pilot.press(*"512")
        await until_shown(pilot, lambda: [w.job.training.sequence_length for w in watchlist.runs()] == [512])
        await pilot.press("escape")
        started = training.create_time()
        training.kill()
        training.wait()
        again = AttachScreen(
            watchlist, estimate=estimate_forty, attached=known, board=board, pid=training.pid, start_time=started
        )
        await app.push_screen(again)
        await until_shown(pilot, lambda: bool(again.query("#row-training-sequence_length Input")))
        assert again.query_one("#row-training-sequence_length Input", Input).value == "512"


async def test_a_diverging_run_shows_the_reason_and_torch_counters(attached, training, two_runs):
    counters = ProcessCounters(
        time=2_000.0,
        allocated_bytes=45 * GIB,
        reserved_bytes=58 * GIB,
        allocated_peak_bytes=50 * GIB,
        reserved_peak_bytes=58 * GIB,
        retries=3,
        steps=7,
    )
    board = two_runs(40, 61, 41, counters=counters)
    async with attached(board=board, pid=999_999_000, size=(160, 50)) as (screen, pilot):
        await until_shown(pilot, lambda: "Why?" in text_of(screen, "#why"))
        assert "tensors take 50.0 GiB" in text_of(screen, "#why")
        bars = text_of(screen, "#bars")
        assert "45.0 allocated (most 50.0, budget 35.0)" in bars
        assert "13.0 cached and free" in bars
        assert "3.0 context and libraries" in bars
        assert "cache flushed 3 times" in bars
        screen.show_board(two_runs(40, 41, 41))
        await until_shown(pilot, lambda: not screen.query_one("#why").display)


async def test_the_time_span_can_be_zoomed(attached, training, two_runs):
    async with attached(board=two_runs(40, 41, 41), pid=999_999_000) as (screen, pilot):
        await until_shown(pilot, lambda: "last 1 min" in text_of(screen, "#legend"))
        await pilot.press("minus", "minus")
        assert "last 15 min" in text_of(screen, "#legend")
        await pilot.press("minus", "minus", "minus", "minus")
        assert "its whole run" in text_of(screen, "#legend")
        await pilot.press("plus", "plus", "plus", "plus", "plus")
        assert "last 1 min" in text_of(screen, "#legend")


async def test_in_a_small_terminal_a_key_shows_the_settings(attached, training, board):
    SavedAnswers().save(run_key(read_run(training.pid)), {"training.sequence_length": 512})
    async with attached(board=board, pid=training.pid, size=(80, 24)) as (screen, pilot):
        await until_shown(pilot, lambda: "within budget" in text_of(screen, "#bars"))
        shown = lambda: [screen.query_one(name).display for name in ("#settings", "#memory")]  # noqa: E731 - short
        assert shown() == [False, True]
        await pilot.press("f6")
        assert shown() == [True, False]
        assert isinstance(screen.focused, Input)
        await pilot.press("f6")
        assert shown() == [False, True]


async def test_a_process_of_a_recording_is_not_read_from_this_machine(attached, training, watchlist, board):
    source = replace(board.snapshot.source, kind="demo")
    recorded = replace(board, snapshot=replace(board.snapshot, source=source))
    async with attached(pid=training.pid, board=recorded, shown=recorded) as (screen, pilot):
        await until_shown(pilot, lambda: "is in the open recording" in text_of(screen, "#problem"))
        assert "41.0 of 80.0 GiB" in text_of(screen, "#bars")
        assert watchlist.runs() == ()


async def test_an_ended_process_is_reported_in_one_sentence(attached):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    async with attached(pid=ended.pid, size=(80, 24)) as (screen, pilot):
        await until_shown(pilot, lambda: f"no process {ended.pid}" in text_of(screen, "#problem"))
        assert text_of(screen, "#run") == f"process {ended.pid}"


@pytest.mark.slow
async def test_an_unreadable_gpu_and_an_ended_run_are_not_shown_as_zero_memory(attached, training, watchlist, board):
    unread = replace(make_gpu(0, used_bytes=None, free_bytes=None), processes=None)
    async with attached(pid=training.pid, shown=board) as (screen, pilot):
        await until_shown(pilot, lambda: "sequence length is missing" in text_of(screen, "#problem"))
        screen.show_board(watchlist.update(make_snapshot([unread, make_gpu(1)], time=2_001.0)))
        await until_shown(pilot, lambda: "GPU n/a" in text_of(screen, "#run"))
        assert "not known: GPU 0 cannot be read" in text_of(screen, "#bars")
        assert "GPU n/a" in screen.query_one(RankTable).rows[0].cells["STATUS"].text
        training.kill()
        training.wait()
        screen.show_board(watchlist.update(make_snapshot([make_gpu(0), make_gpu(1)], time=2_002.0)))
        await until_shown(pilot, lambda: "It has ended." in text_of(screen, "#bars"))
        assert "no GPU" not in text_of(screen, "#run")
