"""The dashboard attaches by itself: the real app, a real training process, the real worker."""

from collections.abc import Callable

import psutil
import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from screen_host import screen_text
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.estimation import estimate
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.attach.screen import AttachScreen

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
