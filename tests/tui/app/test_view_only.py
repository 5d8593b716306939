"""With ``--view-only`` nothing ends, starts, opens or is written, whatever key is pressed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot, make_watchlist
from counted_python import counted_python
from screen_host import screen_text
from waiting import until_shown

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.host.process_stat import start_time_of
from vramtop.monitor.snapshot.snapshot import WatchedJob
from vramtop.monitor.storage import user_file
from vramtop.monitor.storage.settings.change import change_settings
from vramtop.monitor.storage.settings.settings_file import config_file
from vramtop.monitor.storage.user_file import leave_files_unchanged
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.app.view_only_app import REFUSAL, ViewOnlyApp
from vramtop.tui.cli.estimators import Estimators
from vramtop.tui.cli.main import main
from vramtop.tui.job.dialogs import SaveJobScreen
from vramtop.tui.keys import KEYS
from vramtop.tui.screens.fit.screen import FitCheckScreen
from vramtop.tui.screens.registry import SCREENS
from vramtop.tui.widgets.choice import ChoiceMenu

ONLY_SHOW = {"attach", "step", "gpu"}


@pytest.fixture
def sleeper(start_python) -> subprocess.Popen[str]:
    return start_python("import time; time.sleep(600)")


@pytest.fixture
def app(sleeper: subprocess.Popen[bytes], in_folder: Path) -> ViewOnlyApp:
    """The app on a machine where a run trains in a real process of this user."""
    start = start_time_of(sleeper.pid)
    snapshot = make_snapshot([make_gpu(0, [make_process(sleeper.pid, start_time=start)])])
    run = WatchedJob(job=Job(name="sft", model=ModelSpec(id="gpt2")), pids=((sleeper.pid, start),))
    watchlist = make_watchlist(run, pending=[Job(name="next", model=ModelSpec(id="gpt2"))])
    return ViewOnlyApp(ScriptedSource([snapshot]), watchlist, AppOptions())


def notices(app: VramtopApp) -> list[str]:
    return [note.message for note in app._notifications]


async def shown(pilot: Any, app: VramtopApp) -> None:
    await until_shown(pilot, lambda: app.board is not None and app.selected_process is not None)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("key", ["k", *(pytest.param(key, marks=SLOW) for key in "fpr")])
async def test_keys_that_would_change_something_are_refused_with_a_sentence(app, key, sleeper, tmp_path) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, app)
        await pilot.press(key)
        await until_shown(pilot, lambda: notices(app) == [REFUSAL])
        assert len(app.screen_stack) == 1
        assert sleeper.poll() is None
        assert list(tmp_path.iterdir()) == []


@SLOW
@pytest.mark.parametrize("spec", [each for each in SCREENS if each.name != "crash"], ids=lambda spec: spec.name)
async def test_only_screens_that_show_are_opened_by_any_way(app: ViewOnlyApp, spec: Any) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, app)
        spec.open_from(app)
        await until_shown(pilot, lambda: len(app.screen_stack) > 1 or notices(app))
        if isinstance(app.screen, ChoiceMenu):  # the fit check asks first which pending job it is about
            await pilot.press("enter")
        await until_shown(pilot, lambda: spec.name in ONLY_SHOW or REFUSAL in notices(app))
        names = {type(screen).__name__ for screen in app.screen_stack}
        assert not names & {"FitCheckScreen", "PreflightScreen", "TerminateScreen"}
        assert (len(app.screen_stack) > 1) == (spec.name in ONLY_SHOW)


async def test_a_small_terminal_is_told_so(app: ViewOnlyApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, app)
        await pilot.resize_terminal(30, 8)
        await until_shown(pilot, lambda: type(app.screen).__name__ == "TooSmallScreen")
        assert notices(app) == []


async def test_a_new_screen_is_refused_until_it_is_listed(app: ViewOnlyApp) -> None:
    from vramtop.tui.app.help import HelpScreen

    class Changed(HelpScreen):
        """Inherits from a screen that only shows."""

    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, app)
        for screen in (Changed([], []), SaveJobScreen(Job(), "job.toml")):
            await app.push_screen(screen)
            assert len(app.screen_stack) == 1


@SLOW
async def test_the_palettes_commands_write_nothing(app: ViewOnlyApp, tmp_path: Path) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, app)
        for command in app.get_system_commands(app.screen):
            if command.title in ("Record", "Screenshot"):
                command.callback()
        app.action_screenshot()
        await until_shown(pilot, lambda: len(notices(app)) >= 2)
        assert list(tmp_path.iterdir()) == []


@SLOW
async def test_the_settings_of_a_run_can_be_seen_and_not_changed(app: ViewOnlyApp) -> None:
    from vramtop.tui.job.form.job_form import JobForm
    from vramtop.tui.screens.attach.screen import AttachScreen

    async with app.run_test(size=(140, 40)) as pilot:
        await shown(pilot, app)
        await pilot.press("a")
        await until_shown(pilot, lambda: isinstance(app.screen, AttachScreen) and app.screen.query("#settings"))
        form = JobForm(Job(model=ModelSpec(id="gpt2")))
        assert isinstance(app.screen, AttachScreen)
        await app.screen.replace_form(form)
        assert form.disabled
        form.focus()
        await pilot.pause()
        assert app.focused is None or form not in app.focused.ancestors_with_self


def test_no_file_of_the_users_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_file, "_changes_allowed", type(user_file._changes_allowed)())
    user_file._changes_allowed.set()
    leave_files_unchanged()
    change_settings({"dashboard.view": "tree"})
    assert not Path(config_file()).exists()


@pytest.mark.parametrize("words", [["--view-only"], []])
def test_the_flag_chooses_the_app_without_traces(words: list[str], opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramtop.tui.cli.commands.dashboard.leave_files_unchanged", lambda: None)
    assert main(words) == 0
    (app,) = opened
    assert isinstance(app, ViewOnlyApp) == bool(words)
    assert (app.refine is None) == bool(words)


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
def program_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[[], int]) -> ViewOnlyApp:  # fmt: skip
    """The app with a pending job that is a program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.toml").write_text(f'[program]\ncommand = "{tmp_path}/python train.py"\n')
    estimators = Estimators(None, corrects=False, notify=print)
    estimators.watchlist.add_pending(load_job(tmp_path / "job.toml"))
    source = ScriptedSource([make_snapshot([make_gpu(0, [make_process()])])])
    return ViewOnlyApp(source, estimators.watchlist, AppOptions(estimate=estimators.quick))


@pytest.mark.slow
async def test_no_key_of_the_dashboard_and_of_what_it_opens_starts_a_process(program_app, started, runs) -> None:
    keys = dict.fromkeys(name for key in KEYS.values() for name in key.keys.split(",") if name not in QUITS)
    async with program_app.run_test(size=(140, 40)) as pilot:
        await until_shown(pilot, lambda: "not rehearsed" in screen_text(program_app))
        for key in keys:
            await pilot.press(key)
            while len(program_app.screen_stack) > 2:
                await pilot.press("escape")
                await pilot.pause(0.01)
        assert program_app.board is not None
    assert started == []
    assert runs() == 0


async def test_the_fit_check_is_not_opened_on_the_program(program_app, started, runs) -> None:
    async with program_app.run_test(size=(140, 40)) as pilot:
        await until_shown(pilot, lambda: "not rehearsed" in screen_text(program_app))
        (job,) = program_app.watchlist.pending()
        screen = FitCheckScreen(program_app.watchlist, estimate=program_app.watchlist.estimate, initial=job)
        await program_app.push_screen(screen)
        for key in ("f", "ctrl+r", "r", "y", "enter"):
            await pilot.press(key)
        assert screen not in program_app.screen_stack
    assert started == []
    assert runs() == 0
