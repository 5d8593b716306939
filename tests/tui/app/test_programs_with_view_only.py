"""With ``--view-only`` no process is started at all, whatever key is pressed beside a job with a program."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from counted_python import counted_python
from screen_host import screen_text
from waiting import until_shown

from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.tui.app.options import AppOptions
from vramtop.tui.app.view_only_app import ViewOnlyApp
from vramtop.tui.cli.estimators import Estimators
from vramtop.tui.keys import KEYS
from vramtop.tui.screens.fit.screen import FitCheckScreen

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.spawn", "os.system")
QUITS = {"q", "ctrl+q", "ctrl+z"}
_watched: list[list[str]] = []
"""Lists to which the hook adds what is started; a hook cannot be removed."""


def _watch(event: str, _: tuple[Any, ...]) -> None:
    if event in STARTS:
        for started in _watched:
            started.append(event)


@pytest.fixture
def started() -> Iterator[list[str]]:
    """What has been started since the test began."""
    if not getattr(sys, "_watches_starts", False):
        sys.addaudithook(_watch)
        sys._watches_starts = True  # type: ignore[attr-defined]
    found: list[str] = []
    _watched.append(found)
    yield found
    _watched.remove(found)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """How often the job's program has been started."""
    with counted_python(tmp_path / "python", runs=False) as count:
        yield count


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[[], int]) -> ViewOnlyApp:  # fmt: skip
    """The app with a pending job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.toml").write_text(f'[program]\ncommand = "{tmp_path}/python train.py"\n')
    estimators = Estimators(None, corrects=False, notify=print)
    estimators.watchlist.add_pending(load_job(tmp_path / "job.toml"))
    source = ScriptedSource([make_snapshot([make_gpu(0, [make_process()])])])
    return ViewOnlyApp(source, estimators.watchlist, AppOptions(estimate=estimators.quick))


@pytest.mark.slow
async def test_no_key_of_the_dashboard_and_of_what_it_opens_starts_a_process(app, started, runs) -> None:
    keys = dict.fromkeys(name for key in KEYS.values() for name in key.keys.split(",") if name not in QUITS)
    async with app.run_test(size=(140, 40)) as pilot:
        await until_shown(pilot, lambda: "not rehearsed" in screen_text(app))
        for key in keys:
            await pilot.press(key)
            while len(app.screen_stack) > 2:
                await pilot.press("escape")
                await pilot.pause(0.01)
        assert app.board is not None
    assert started == []
    assert runs() == 0


async def test_the_fit_check_is_not_opened_on_the_program(app, started, runs) -> None:
    async with app.run_test(size=(140, 40)) as pilot:
        await until_shown(pilot, lambda: "not rehearsed" in screen_text(app))
        (job,) = app.watchlist.pending()
        screen = FitCheckScreen(app.watchlist, estimate=app.watchlist.estimate, initial=job)
        await app.push_screen(screen)
        for key in ("f", "ctrl+r", "r", "y", "enter"):
            await pilot.press(key)
        assert screen not in app.screen_stack
    assert started == []
    assert runs() == 0


def test_the_watch_sees_what_is_started(started: list[str]) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert "subprocess.Popen" in started
