"""The app: notices from before it is open, the saved theme, screenshots, and pending jobs of the command line."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import ScriptedSource, make_budget, make_device, make_gpu, make_process, make_snapshot
from screen_host import screen_text
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Training
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.board.board import PendingRow
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions, Notices
from vramtop.tui.cli.main import main
from vramtop.tui.screens.attach.screen import AttachScreen
from vramtop.tui.screens.dashboard.screen import pending_line


def make_app(**options: Any) -> VramtopApp:
    watchlist = Watchlist(lambda job: pytest.fail("no job is known"))
    return VramtopApp(ScriptedSource([make_snapshot([make_gpu()])]), watchlist, AppOptions(**options))


async def test_a_chosen_theme_is_saved() -> None:
    kept: list[tuple[str, str]] = []
    app = make_app(theme="nord", save_setting=lambda *setting: kept.append(setting))
    async with app.run_test() as pilot:
        assert app.theme == "nord"
        await pilot.pause()
        assert kept == []
        app.theme = "textual-light"
        await pilot.pause()
        assert kept == [("dashboard.theme", "textual-light")]


async def test_a_saved_theme_that_no_longer_exists_is_said() -> None:
    app = make_app(theme="of-another-version")
    async with app.run_test() as pilot:
        assert app.theme in app.available_themes
        await pilot.pause()
        (notice,) = app._notifications
        assert notice.message.startswith("There is no theme of-another-version; ")


async def test_notices_from_before_the_dashboard_opens_are_shown_once_it_is_open() -> None:
    notices = Notices(["first"])
    app = make_app(notices=notices)
    notices.add("second")
    async with app.run_test() as pilot:
        await pilot.pause()
        assert [note.message for note in app._notifications] == ["first", "second"]


async def test_a_screenshot_is_saved_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test() as pilot:
        app.action_screenshot()
        await until_shown(pilot, lambda: app._notifications)
        assert [path.suffix for path in tmp_path.iterdir()] == [".svg"]


def test_a_job_of_the_command_line_is_pending_while_the_dashboard_is_open(opened, tmp_path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('name = "once"\n[model]\nid = "gpt2"\n')
    assert main(["--job", str(file)]) == 0
    for thread in threading.enumerate():
        if thread.name == "save pending jobs":
            thread.join(10)
    assert main([]) == 0
    assert [[job.label for job in app.watchlist.pending()] for app in opened] == [["once"], []]


FLAGS = ("--model_name_or_path", "meta-llama/Llama-3.1-8B", "--per_device_train_batch_size", "2")


@pytest.fixture
def start(start_script) -> Callable[..., psutil.Process]:
    return lambda *flags: psutil.Process(start_script(*FLAGS, *flags).pid)


def open_app(*processes: psutil.Process, enabled: bool = True) -> VramtopApp:
    held = [
        make_process(pid=each.pid, used=30, start_time=each.create_time(), command=" ".join(each.cmdline()))
        for each in processes
    ]
    watchlist = Watchlist(estimate)
    attach = AutomaticAttach(watchlist, enabled=enabled)
    source = ScriptedSource([make_snapshot([make_gpu(0, held)])])
    return VramtopApp(source, watchlist, AppOptions(interval=0.05, attach=attach))


async def test_a_training_process_gets_its_budget(start) -> None:
    app = open_app(start("--max_length", "512"))
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: "Llama-3.1-8B" in screen_text(app))
        assert "warming up" in screen_text(app)


@pytest.mark.slow  # two screens, and two estimates
async def test_enter_asks_an_incomplete_run_for_what_is_missing(start) -> None:
    process = start()
    app = open_app(process)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: "? incomplete" in screen_text(app))
        assert "missing: sequence length" in screen_text(app)
        await pilot.press("enter")
        await until_shown(pilot, lambda: isinstance(app.screen, AttachScreen) and isinstance(app.focused, Input))
        await pilot.press(*"1024")
        await until_shown(pilot, lambda: app.watchlist.runs()[0].job.training.sequence_length == 1024)
        assert app.watchlist.runs()[0].missing == ()
        await pilot.press("escape")
        await until_shown(pilot, lambda: "? incomplete" not in screen_text(app))


async def test_without_automatic_attaching_the_summary_says_how_to_attach(start) -> None:
    app = open_app(start(), enabled=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: "press a to attach to a running job" in screen_text(app))
        await until_shown(pilot, lambda: "not attached" in screen_text(app))


JOB = Job(name="sft; rm")


def row(fits: bool, turned_at: float | None) -> PendingRow:
    fit = check_fit(budget := make_budget(JOB), [make_device(3, 70)])
    return PendingRow(job=JOB, budget=budget, fit=fit, fits=fits, fits_changed_at=turned_at)


async def test_each_change_of_fit_is_told_once() -> None:
    free = [1, *[70] * 6, *[1] * 6]
    other = Job(name=JOB.name, training=Training(micro_batch=2))  # of the same name
    looks = [
        make_snapshot([make_gpu(0, free_bytes=each * GIB), make_gpu(1, free_bytes=each * GIB)], time=2_000.0 + at)
        for at, each in enumerate(free)
    ]
    watchlist = Watchlist(make_budget)
    for job in (JOB, other):
        watchlist.add_pending(job)
    app = VramtopApp(ScriptedSource(looks), watchlist, AppOptions(interval=0.05))
    async with app.run_test(size=(100, 30)) as pilot:
        said = 2 * ["sft; rm fits now"] + 2 * ["sft; rm no longer fits"]
        await until_shown(pilot, lambda: len(app._notifications) >= len(said))
        await pilot.pause(0.2)  # more readings
        assert [note.message for note in app._notifications] == said


def test_a_program_that_is_not_rehearsed_has_the_keys_that_ask_to_run_it() -> None:
    row = PendingRow(job=JOB, problem="not rehearsed: vramtop rehearse job.toml runs the program without a GPU")
    assert pending_line(row, 90, now=0.0).plain.rstrip().endswith("not rehearsed: press f, then Ctrl+R to run it")
    assert "vramtop rehearse job.toml" in pending_line(row, 90, now=0.0, asks=False).plain


def test_a_job_whose_fit_changed_recently_is_highlighted() -> None:
    assert pending_line(row(True, 100.0), 60, now=110.0).plain.startswith(" NOW  sft; rm  ✓ FITS")
    assert pending_line(row(False, 100.0), 60, now=110.0).plain.startswith(" NOW  sft; rm")
    assert pending_line(row(True, 100.0), 60, now=170.0).plain.startswith("pending sft; rm")
    assert pending_line(row(True, None), 60, now=170.0).plain.startswith("pending sft; rm")
