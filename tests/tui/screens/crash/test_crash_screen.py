"""The crash screen in the real app: a run that ended out of memory, its explanation, a snapshot beside its step."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from memory_snapshots import LOAD, Recorder, training_crash
from screen_host import screen_lines, screen_text
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Training
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import FinalCounters, ProcessCounters, WatchedJob
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.screens.attach.rank_table import RankTable
from vramtop.tui.screens.crash.screen import CrashScreen
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.step.screen import StepScreen

JOB = Job(name="gpt2-sft", model=ModelSpec(id="gpt2"), training=Training(micro_batch=16, sequence_length=1024))
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 22.65 GiB memory in use. Of the "
    "allocated memory 21.00 GiB is allocated by PyTorch, and 1.15 GiB is reserved by PyTorch but unallocated."
)


def crashed(missing: tuple[str, ...] = ()) -> VramtopApp:
    """Return the app with a followed run on a 24 GiB GPU whose last words are OutOfMemoryError."""
    counters = ProcessCounters(
        time=2_000.0, allocated_bytes=19 * GIB, reserved_bytes=22 * GIB, out_of_memory=1, steps=7
    )
    process = make_process(used=22.5, counters=counters)
    gpu = {"total_bytes": 24 * GIB, "free_bytes": GIB // 4, "reserved_bytes": 0}
    last = ProcessCounters(
        time=2_000.5, error="OutOfMemoryError", ended=2_000.5, steps=7,
        allocated_bytes=GIB, allocated_peak_bytes=19 * GIB, reserved_bytes=22 * GIB, reserved_peak_bytes=22 * GIB,
    )  # fmt: skip
    words = (FinalCounters(gpu=0, pid=process.pid, start_time=process.start_time, counters=last),)
    before = make_snapshot([make_gpu(processes=(process,), **gpu)])
    after = make_snapshot([make_gpu(**gpu)], time=2_001.0, last_words=words)
    watchlist = Watchlist(lambda job: estimate(job, method="formula"))
    watchlist.set_budget(estimate(JOB, method="formula"))
    watchlist.add_run(WatchedJob(job=JOB, pids=(process.key,), missing=missing))
    return VramtopApp(ScriptedSource([before, before, after]), watchlist)


def has_ended(app: VramtopApp) -> bool:
    rows = [row for run in app.board.runs for row in run.rows] if app.board else []
    return any(row.comparison and row.comparison.status == "out_of_memory" for row in rows)


async def open_by_enter(app: VramtopApp, pilot: Any) -> None:
    await until_shown(pilot, lambda: has_ended(app))
    assert isinstance(app.screen, DashboardScreen)
    await until_shown(pilot, lambda: app.selected_process is not None and app.selected_process.ended_at is not None)
    app.screen.table.focus()
    while not isinstance(app.screen, CrashScreen):
        await pilot.press("enter")
        await pilot.pause()


@pytest.mark.parametrize(
    "size", [pytest.param((80, 24), marks=pytest.mark.slow), (120, 40), pytest.param((200, 60), marks=pytest.mark.slow)]
)
async def test_enter_on_a_run_that_ended_out_of_memory_explains_it(size: Any) -> None:
    app = crashed()
    async with app.run_test(size=size) as pilot:
        await open_by_enter(app, pilot)
        await until_shown(pilot, lambda: "changes that would have fit" in str(app.screen.query_one("#lines").render()))
        text = str(app.screen.query_one("#lines").render())
        assert "GPU memory ran out (GPU 0): 256 MiB free" in text
        assert "tensors" in text
        assert "19.00 GiB" in text
        assert "reserved by PyTorch, unused" in text
        assert "The failure was expected" in text
        assert "7 steps succeeded before" in text
        assert "--activation-checkpointing full" in text
        assert all(len(line) <= size[0] for line in screen_lines(app))
        assert "Out of memory: gpt2-sft" in screen_text(app)


async def test_a_budget_that_is_a_guess_is_not_compared() -> None:
    app = crashed(missing=("training.sequence_length",))
    async with app.run_test(size=(120, 40)) as pilot:
        await open_by_enter(app, pilot)
        await until_shown(pilot, lambda: "Settings of this job are missing" in screen_text(app))
        assert "beside the budget" not in screen_text(app)


async def open_file(pilot: Any, app: VramtopApp, path: Path) -> None:
    await pilot.press("o")
    await until_shown(pilot, lambda: bool(app.screen.query(Input)))
    app.screen.query_one(Input).value = str(path)
    await pilot.press("enter")


@pytest.mark.slow
async def test_an_opened_snapshot_is_explained_and_the_predicted_step_opens(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(training_crash()))
    app = crashed()
    async with app.run_test(size=(140, 40)) as pilot:
        await open_by_enter(app, pilot)
        await open_file(pilot, app, path)
        await until_shown(pilot, lambda: "500 MiB requested" in screen_text(app))
        await pilot.press("f5")
        await until_shown(pilot, lambda: isinstance(app.screen, StepScreen))


@pytest.mark.slow
async def test_a_log_is_explained_beside_the_same_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a short name, which is not broken into lines
    path = tmp_path / "train.log"
    path.write_text(f"step 1\n{MESSAGE}\n")
    app = crashed()
    async with app.run_test(size=(120, 40)) as pilot:
        await open_by_enter(app, pilot)
        await open_file(pilot, app, Path("absent"))
        await until_shown(pilot, lambda: "cannot be read" in screen_text(app))
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await until_shown(pilot, lambda: "line 2): 2.00 GiB requested, 1.00 GiB free" in screen_text(app))
        assert "beside the budget of gpt2-sft" in screen_text(app)


@pytest.mark.slow
async def test_the_key_asks_for_a_file_where_no_run_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    path.write_text(json.dumps(training_crash()))
    app = VramtopApp(ScriptedSource([make_snapshot([make_gpu()])]), Watchlist(estimate))
    async with app.run_test(size=(100, 40)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await pilot.press("e")
        await until_shown(pilot, lambda: bool(app.screen.query(Input)) and "memory snapshot" in screen_text(app))
        await pilot.press("enter")
        await until_shown(pilot, lambda: "type the path of a file" in screen_text(app))
        log = tmp_path / "log"
        log.write_text("all is well\n")
        app.screen.query_one(Input).value = str(log)
        await pilot.press("enter")
        await until_shown(pilot, lambda: "No out-of-memory error found: " in screen_text(app))
        await pilot.press("o")
        await until_shown(pilot, lambda: bool(app.screen.query(Input)))
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await until_shown(pilot, lambda: "500 MiB requested, 120 MiB free" in screen_text(app))
        await pilot.press("f5")  # there is no budget, so there is no step
        assert isinstance(app.screen, CrashScreen)


@pytest.mark.slow
async def test_the_snapshot_that_the_run_has_left_is_opened_by_itself(tmp_path: Path) -> None:
    (tmp_path / "vramtop-oom-rank0-14711.pickle").write_bytes(b"of another process")
    (tmp_path / "vramtop-oom-rank0-4711.pickle").write_bytes(pickle.dumps(training_crash()))
    app = crashed()
    ranks = (SimpleNamespace(pid=4711),)
    app.attachments[4711, 1_000.0] = SimpleNamespace(cwd=tmp_path, ranks=ranks)  # type: ignore[assignment]
    async with app.run_test(size=(120, 40)) as pilot:
        await open_by_enter(app, pilot)
        await until_shown(pilot, lambda: "500 MiB requested" in screen_text(app))
        assert "vramtop-oom-rank0-4711.pickle" in screen_text(app)


@pytest.mark.slow
async def test_a_snapshot_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "vramtop-oom-rank0-4711.pickle").write_bytes(b"cut off")
    app = crashed()
    ranks = (SimpleNamespace(pid=4711),)
    app.attachments[4711, 1_000.0] = SimpleNamespace(cwd=tmp_path, ranks=ranks)  # type: ignore[assignment]
    async with app.run_test(size=(120, 40)) as pilot:
        await open_by_enter(app, pilot)
        await until_shown(
            pilot, lambda: any("Cannot show the run's snapshot: " in note.message for note in app._notifications)
        )
        assert any("vramtop-oom-rank0-4711.pickle" in note.message for note in app._notifications)
        assert screen_text(app).lstrip().startswith("Out of memory: ")  # what is known of the run stays


@pytest.mark.slow
async def test_enter_on_a_rank_of_the_attach_screen_explains_its_end() -> None:
    app = crashed()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: has_ended(app))
        await pilot.press("a")
        await until_shown(pilot, lambda: "Enter explains it" in screen_text(app))
        app.screen.query_one(RankTable).focus()
        await pilot.press("enter")
        await until_shown(pilot, lambda: isinstance(app.screen, CrashScreen))


@pytest.mark.slow
async def test_a_snapshot_of_a_run_that_has_not_failed_is_not_called_out_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "asked.pickle"
    recorder = Recorder()
    recorder.alloc(64, LOAD)
    path.write_bytes(pickle.dumps(recorder.snapshot()))
    app = crashed()
    async with app.run_test(size=(100, 30)) as pilot:
        await open_by_enter(app, pilot)
        await open_file(pilot, app, path)
        await until_shown(pilot, lambda: "Memory snapshot: " in screen_text(app))
        assert "Out of memory: " not in screen_text(app)
        assert "no allocation failed before this snapshot was written" in screen_text(app)
