"""A run that was not read is rehearsed beside it: asked for on the attach screen, and found again the next time."""

import os
import sys
from pathlib import Path

import psutil
import pytest
from screen_host import opened, screen_text
from waiting import until_shown

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.trace import isolated_run
from vramtop.estimator.trace.isolated_run import IsolatedRun
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.attach.rehearse_run import find_program
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.cli.estimators import Estimators
from vramtop.tui.cli.main import main
from vramtop.tui.job.dialogs import RehearseScreen
from vramtop.tui.screens.attach.screen import AttachScreen

pytest.importorskip("torch")

PROGRAM = """
import os, sys, time, torch
dev = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(1024, int(sys.argv[1]), device=dev)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
open("log.txt", "a").write(f"{os.environ.get('LOCAL_RANK')} {dev}\\n")
print("up", flush=True)
while True:
    net(torch.randn(64, 1024, device=dev)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0 if dev == "cuda" else 1)
"""


WAITS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
"""A program that does nothing, where only its process is looked at."""


@pytest.fixture
def text() -> str:
    return PROGRAM


@pytest.fixture
def run(start_script, text: str) -> psutil.Process:
    """A real run on the CPU, the fourth of eight ranks."""
    environ = {**os.environ, "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}
    return psutil.Process(start_script("2048", text=text, env=environ).pid)


@pytest.mark.slow
async def test_a_run_that_was_not_read_is_rehearsed_after_a_yes_and_known_from_then_on(run, tmp_path, monkeypatch):
    monkeypatch.setattr(isolated_run, "_LOWEST", 0)  # other tests would leave it no time
    quick = Estimators(None, corrects=False, notify=print).quick
    watchlist = Watchlist(estimate=quick)

    def budget_is_shown() -> bool:
        jobs = [watched.job for watched in watchlist.runs()]
        return bool(jobs and jobs[0].program and "no budget" not in screen_text(pilot.app))

    screen = AttachScreen(watchlist, estimate=quick, pid=run.pid)
    async with opened(screen) as (screen, pilot):
        await until_shown(pilot, lambda: "rehearses this run: about 20 s of one core" in screen_text(pilot.app))
        await pilot.press("r")  # the cursor is in no field: a rehearsal needs none of them
        await until_shown(pilot, lambda: isinstance(pilot.app.screen, RehearseScreen) and pilot.app.focused)
        assert "train.py 2048" in screen_text(pilot.app)
        assert str(tmp_path) in screen_text(pilot.app)
        await pilot.press("y")
        await until_shown(pilot, lambda: "stops it" in screen_text(pilot.app))
        await until_shown(pilot, budget_is_shown)
    assert (tmp_path / "log.txt").read_text() == "3 cpu\n"
    assert run.is_running()
    (kept,) = [read_run(run.pid).reading.job().program]
    assert kept.kept


@pytest.mark.parametrize("text", [WAITS])
async def test_a_rehearsal_is_stopped_by_its_key_or_by_escape(run) -> None:
    quick = Estimators(None, corrects=False, notify=print).quick
    async with opened(AttachScreen(Watchlist(estimate=quick), estimate=quick, pid=run.pid)) as (_, pilot):
        for key in ("ctrl+r", "escape"):
            await until_shown(pilot, lambda: "rehearses this run" in screen_text(pilot.app))
            await pilot.press("ctrl+r")
            await until_shown(pilot, lambda: isinstance(pilot.app.screen, RehearseScreen) and pilot.app.focused)
            await pilot.press("y")
            await until_shown(pilot, lambda: "stops it" in screen_text(pilot.app))
            await pilot.press(key)
            await until_shown(pilot, lambda: "stops it" not in screen_text(pilot.app))


@pytest.mark.parametrize("text", [WAITS])
def test_attaching_from_the_command_line_offers_it(run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(run.pid)]) == 3
    offer = f"For the exact figure: vramtop attach {run.pid} --rehearse runs its program beside it."
    assert capsys.readouterr().out.splitlines()[-1] == offer


@pytest.mark.parametrize("text", [WAITS])
def test_a_rank_is_rehearsed_as_the_first(run) -> None:
    found = find_program(run.pid)
    assert {name: found.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "8",
    }


@pytest.mark.parametrize("text", [WAITS])
def test_a_run_of_another_user_is_never_rehearsed(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CannotTellError, match="vramtop rehearses only your own runs"):
        find_program(run.pid)


def test_a_rehearsal_in_the_background_gives_way(tmp_path: Path) -> None:
    wait = "import os, time\nwhile os.nice(0) != 19: time.sleep(0.1)\nraise SystemExit(7)"
    with IsolatedRun(str(tmp_path), offline=False, background=True) as run:
        run.start([sys.executable, "-c", wait], dict(os.environ))
        run.wait(60, lambda: None)
    assert run.report.code == 7
