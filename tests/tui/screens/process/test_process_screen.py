"""The process screen over a real process, with pynvml's own calling code over the fake driver."""

import os
import re
from itertools import chain, repeat

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_run, make_snapshot, make_watchlist
from fake_driver import FakeGpu, FakeProcess
from screen_host import on_first_board, screen_lines, screen_text
from textual.containers import VerticalScroll
from waiting import until_shown

from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.inspect import host_figures, process_details
from vramtop.monitor.snapshot.demand import CurrentDemand
from vramtop.monitor.snapshot.faults import Fault
from vramtop.monitor.snapshot.snapshot import ProcessFigures, Source
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.attach.screen import AttachScreen
from vramtop.tui.screens.base import ShowsBoard, is_complete
from vramtop.tui.screens.process.screen import ProcessInfoScreen

GIB = 2**30
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123"  # noqa: S105 - made up
UTILISATION = "nvmlDeviceGetProcessUtilization"


@pytest.fixture
def program(tmp_path, start_python):
    """A process with a secret, and a file of which it reads."""
    (tmp_path / "data.bin").write_bytes(b"x")
    code = "import sys; f = open('data.bin'); print('ready', flush=True); input()"
    environ = {**os.environ, "HF_TOKEN": TOKEN, "NCCL_DEBUG": "INFO"}
    child = start_python(code, env=environ, cwd=tmp_path)
    child.stdout.readline()
    return child


def never(job):
    raise AssertionError(job)


@pytest.mark.slow
async def test_figures_and_details_are_read_while_the_screen_is_open_and_not_before(
    driver, program, tmp_path, monkeypatch
):
    monkeypatch.setattr(host_figures, "MIN_WINDOW_SECONDS", 0.0)
    driver.gpus = [FakeGpu(processes=[FakeProcess(program.pid, 12 * GIB, utilisation=(48, 30))])]
    demand = CurrentDemand()
    app = VramtopApp(NvmlSource(demand=demand), Watchlist(never), AppOptions(interval=0.05, demand=demand))
    async with on_first_board(app, (160, 160)) as pilot:
        first = app.board
        await until_shown(pilot, lambda: app.board is not first)
        assert not driver.calls[UTILISATION]
        assert not demand.value.processes

        await pilot.press("i")
        await until_shown(pilot, lambda: "NCCL_DEBUG=INFO" in screen_text(app) and " 48 %" in screen_text(app))
        await until_shown(pilot, lambda: re.search(r"CPU +\d+ %", screen_text(app)))
        text = screen_text(app)
        assert f"Process {program.pid} · " in text
        assert "bandwidth    30 %" in text
        assert "threads 1" in text
        assert str(tmp_path) in text
        assert "HF_TOKEN=***" in text
        assert TOKEN not in text
        assert text.index("NCCL_DEBUG") < text.index("PATH=")  # what a job depends on comes first

        await pilot.press("escape")
        await until_shown(pilot, lambda: not demand.value.processes)
        board = app.board
        await until_shown(pilot, lambda: app.board is not board)
        calls, board = driver.calls[UTILISATION], app.board
        await until_shown(pilot, lambda: app.board is not board)
        assert driver.calls[UTILISATION] == calls


async def test_a_process_that_is_not_visible_says_so_once_in_whole_words(driver):
    driver.gpus = [FakeGpu(processes=[FakeProcess(2**22 - 1, GIB)])]  # the largest pid, which nothing here has
    demand = CurrentDemand()
    app = VramtopApp(NvmlSource(demand=demand), Watchlist(never), AppOptions(interval=0.05, demand=demand))
    async with on_first_board(app, (80, 24)) as pilot:
        await pilot.press("i")
        await until_shown(pilot, lambda: "container" in screen_text(app))
        assert screen_text(app).count("not visible") == 1


async def test_an_ended_process_keeps_what_was_read_and_says_so(driver, program):
    driver.gpus = [FakeGpu(processes=[FakeProcess(program.pid, 12 * GIB)])]
    demand = CurrentDemand()
    app = VramtopApp(NvmlSource(demand=demand), Watchlist(never), AppOptions(interval=0.05, demand=demand))
    async with on_first_board(app, (80, 24)) as pilot:
        await pilot.press("i")
        await until_shown(pilot, lambda: "n/a: the driver has no sample of this process" in screen_text(app))
        assert "SM    n/a" in screen_text(app)
        program.kill()
        program.wait()
        driver.gpus[0].processes = []
        await until_shown(pilot, lambda: "The process is not on a GPU now" in screen_text(app))
        await pilot.press("r")
        await until_shown(pilot, lambda: f"There is no process {program.pid} here" in screen_text(app))
        assert "last reading" in screen_text(app)


async def test_a_recording_shows_what_it_has_and_no_process_of_this_machine_is_read(monkeypatch):
    monkeypatch.setattr(process_details, "read_details", never)
    fault = Fault(field="sm_percent", code="NOT_SUPPORTED", message="this GPU does not report it")
    figures = ProcessFigures(cpu_percent=1612.0, rss_bytes=12 * GIB, faults=(fault,))
    process = replace(make_process(os.getpid(), 60), figures=figures)
    snapshot = replace(make_snapshot([make_gpu(0, [process])]), source=Source(kind="recording", host="gpubox-3"))
    app = VramtopApp(ScriptedSource([snapshot]), Watchlist(never), AppOptions(interval=0.05))
    async with on_first_board(app) as pilot:
        await pilot.press("i")
        await until_shown(
            pilot, lambda: isinstance(app.screen, ProcessInfoScreen) and "not on this machine" in screen_text(app)
        )
        text = screen_text(app)
        assert "CPU  1612 %" in text
        assert "12.0 GiB" in text
        assert "n/a: this GPU does not report it" in text
        assert "n/a: not in these readings" in text
        assert f"python train.py --seed {os.getpid()}" in text
        await pilot.press("i")
        await until_shown(pilot, lambda: not isinstance(app.screen, ProcessInfoScreen))


async def test_without_a_process_under_the_cursor_there_is_a_sentence():
    app = VramtopApp(ScriptedSource([make_snapshot([make_gpu(0)])]), Watchlist(never), AppOptions(interval=0.05))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await pilot.press("i")
        await until_shown(pilot, lambda: [notice.message for notice in app._notifications])
        assert [notice.message for notice in app._notifications] == ["There is no process under the cursor."]


async def test_the_attach_screen_leads_to_the_process_of_its_run():
    watchlist = make_watchlist(make_run(Job(name="tune", model=ModelSpec(id="m")), 2**22 - 5), device=30.0)
    snapshot = make_snapshot([make_gpu(0, [make_process(2**22 - 5, 60)])])
    source, now = ScriptedSource([]), [100.0]
    source.read = chain([snapshot], repeat(None)).__next__  # nothing new that arrives after the clock has moved
    app = VramtopApp(source, watchlist, AppOptions(interval=0.05, clock=lambda: now[0]))
    async with on_first_board(app) as pilot:
        await pilot.press("a")
        await until_shown(pilot, lambda: isinstance(app.screen, AttachScreen) and "tune" in screen_text(app))
        assert "old" not in screen_lines(app)[0]
        app.action_pause()
        now[0] += 12.0
        await until_shown(pilot, lambda: "paused  ·  ! figures are 12 s old" in screen_lines(app)[0])
        await until_shown(pilot, lambda: app.screen.shown_process == (2**22 - 5, 1_000.0))
        app.screen.set_focus(None)
        await pilot.press("i")
        await until_shown(pilot, lambda: isinstance(app.screen, ProcessInfoScreen))
        await until_shown(pilot, lambda: "tune" in screen_text(app) and "OVER" in screen_text(app))
        await until_shown(pilot, lambda: "! figures are 12 s old" in screen_lines(app)[0])
        await until_shown(pilot, lambda: f"There is no process {2**22 - 5} here" in screen_text(app))
        await pilot.press("escape")
        await until_shown(pilot, lambda: isinstance(app.screen, AttachScreen))


async def test_a_screen_is_complete_once_its_children_have_theirs(monkeypatch):
    seen, details = [], VerticalScroll.compose
    monkeypatch.setattr(
        VerticalScroll, "compose", lambda self: [seen.append(is_complete(self.screen)), *details(self)][1:]
    )
    app = VramtopApp(ScriptedSource([make_snapshot([make_gpu(0, [make_process(2**22 - 5)])])]), Watchlist(never))
    async with on_first_board(app) as pilot:
        await pilot.press("i")
        await until_shown(pilot, lambda: isinstance(app.screen, ProcessInfoScreen) and is_complete(app.screen))
    assert seen == [False]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["i", "g", "k"])
async def test_a_screen_that_is_closed_while_it_opens_takes_no_board(driver, program, key):
    """Keys that are typed quickly open a screen and leave it, or the app, before it has its widgets."""
    driver.gpus = [FakeGpu(processes=[FakeProcess(program.pid, GIB)])]
    app = VramtopApp(NvmlSource(), Watchlist(never), AppOptions(interval=0.01))
    async with on_first_board(app) as pilot:
        for _ in range(3):
            app.simulate_key(key)
            app.simulate_key("escape")
            opened = app.screen
            app.rebuild_board()
            await pilot.press("escape")
            if isinstance(opened, ShowsBoard):
                opened.show_board(app.board)
        app.simulate_key(key)
        app.exit()
    assert app.return_code == 0


async def test_details_that_arrive_after_the_process_screen_was_closed_are_dropped(driver, program):
    driver.gpus = [FakeGpu(processes=[FakeProcess(program.pid, GIB)])]
    app = VramtopApp(NvmlSource(), Watchlist(never), AppOptions(interval=0.05))
    async with on_first_board(app) as pilot:
        await pilot.press("i")
        await until_shown(pilot, lambda: isinstance(app.screen, ProcessInfoScreen) and app.screen.is_mounted)
        screen = app.screen
        app.pop_screen()
        screen.action_read()
        screen.show_board(replace(app.board))
        await pilot.pause()
        assert app.return_code is None
