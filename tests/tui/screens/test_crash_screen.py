"""The crash screen in the real app: a run that ended out of memory, its explanation, a snapshot beside its step."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from memory_snapshots import training_crash
from screen_host import screen_lines, screen_text
from waiting import until_shown

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Training
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import FinalCounters, ProcessCounters, WatchedJob
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.screens.crash import CrashScreen
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.step.screen import StepScreen

JOB = Job(name="gpt2-sft", model=ModelSpec(id="gpt2"), training=Training(micro_batch=16, sequence_length=1024))


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
        await pilot.press("f5")
        await until_shown(pilot, lambda: isinstance(app.screen, StepScreen))
