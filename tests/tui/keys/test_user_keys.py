"""Keys of the user in the real app: they work, the default ones no longer do, and every text names those in force."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.processes import start_time_of
from vramtop.tui.app.app import AppOptions, VramtopApp
from vramtop.tui.app.help import HelpScreen
from vramtop.tui.cli.main import main
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.dashboard.signals import TerminateScreen
from vramtop.tui.screens.fit import FitCheckScreen
from vramtop.tui.widgets.keys_line import KeysLine
from vramtop.tui.widgets.row_table import StaticLines

MakeApp = Callable[..., VramtopApp]


@pytest.fixture
def make_app(make_snapshot: Any, make_gpu: Any, make_process: Any, make_budget: Any, scripted_source: Any) -> MakeApp:
    def make(keys: dict[str, Any], pid: int = 4711, start_time: float | None = None) -> VramtopApp:
        snapshot = make_snapshot([make_gpu(0, [make_process(pid, start_time=start_time)])])
        return VramtopApp(scripted_source([snapshot]), Watchlist(make_budget), AppOptions(settings={"keys": keys}))

    return make


def footer(app: VramtopApp) -> str:
    return str(app.screen.query_one(KeysLine).render())


async def test_a_chosen_key_takes_the_place_of_the_default(make_app: MakeApp) -> None:
    app = make_app({"dashboard.fit_check": ("F", "f4"), "dashboard.attach": "f"})
    async with app.run_test(size=(120, 30)) as pilot:
        await until_shown(pilot, lambda: app.board is not None and "Fit" in footer(app))
        assert footer(app).startswith("Enter Open F Fit f Attach t Step")  # in the usual order
        summary = app.screen.query_one("#summary", StaticLines)
        assert "press f to attach to a running job, F to check a new one" in summary.shown.plain
        await pilot.press("a")
        assert isinstance(app.screen, DashboardScreen)
        for key in ("F", "f4"):
            await pilot.press(key)
            await until_shown(pilot, lambda: isinstance(app.screen, FitCheckScreen))
            await pilot.press("escape")
            await until_shown(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_the_help_names_the_keys_in_force(make_app: MakeApp) -> None:
    app = make_app({"dashboard.attach": "ctrl+a", "app.help": "h", "dashboard.host_line": "H", "fit.pin": ("f2", "P")})
    async with app.run_test(size=(120, 50)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        assert "h Help" in footer(app)
        await pilot.press("h")
        await until_shown(pilot, lambda: isinstance(app.screen, HelpScreen))
        help_screen = app.screen
        assert isinstance(help_screen, HelpScreen)
        lines = [line.split("  ")[0].strip() for line in help_screen.content().plain.splitlines()]
        assert {"Ctrl+A", "H", "h", "F2 P"} <= set(lines)
        await pilot.press("h")  # all of it, in sentences
        await pilot.press("h")
        await until_shown(pilot, lambda: isinstance(app.screen, DashboardScreen))


@pytest.mark.slow
async def test_a_letter_in_place_of_a_function_key_is_text_in_a_field(make_app: MakeApp) -> None:
    app = make_app({"fit.pin": "x", "job.step": ("ctrl+t", "t")})
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await pilot.press("f")
        await until_shown(pilot, lambda: isinstance(app.screen, FitCheckScreen))
        await until_shown(pilot, lambda: "Ctrl+T Step" in footer(app))
        assert "Pin" not in footer(app)
        await pilot.press(*"gpt2x")
        field: Any = app.screen.focused
        assert field.value == "gpt2x"
        await pilot.press("backspace", "enter")
        await pilot.press("f6")
        await until_shown(pilot, lambda: "x Pin" in footer(app))


async def test_quitting_always_works_with_ctrl_q(make_app: MakeApp) -> None:
    app = make_app({"app.quit": "ctrl+e", "processes.view": "q"})
    async with app.run_test(size=(120, 30)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        assert "Ctrl+E Quit" in footer(app)
        await pilot.press("q")
        assert app.is_running
        await pilot.press("ctrl+q")
        await until_shown(pilot, lambda: not app.is_running)


@pytest.mark.slow
async def test_another_key_opens_the_question_before_a_signal(make_app: MakeApp) -> None:
    keys = {"processes.signal": "X"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            await _open_question(make_app(keys, process.pid, start_time_of(process.pid)))
        finally:
            process.kill()


async def _open_question(app: VramtopApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await until_shown(pilot, lambda: app.board is not None and "X Kill" in footer(app))
        await pilot.press("k")
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press("X")
        await until_shown(pilot, lambda: isinstance(app.screen, TerminateScreen))
        assert str(app.screen.query_one("#terminate").render()).strip() == "y TERM"


def test_config_names_what_is_wrong_with_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[keys]\nfit.pin = "F9"\ndashboard.attach = "f"\nfit.pinn = "x"\n"app.help" = ["h", "nonsense"]\n')
    monkeypatch.setenv("VRAMTOP_CONFIG", str(file))
    assert main(["config", "keys"]) == 2
    out, err = capsys.readouterr()
    assert "fit.pin" not in out
    first, second, third, fourth = sorted(err.splitlines())
    assert first.startswith(f"vramtop: {file}, line 2: keys.fit.pin: F9 is taken by fit.copy (fit check: copy ")
    assert second.startswith(f"vramtop: {file}, line 3: keys.dashboard.attach: f is taken by dashboard.fit_check")
    assert third == (
        f"vramtop: {file}, line 4: keys.fit.pinn: no key setting has this name; the nearest is fit.pin; using its "
        "default"
    )
    assert fourth.startswith(f"vramtop: {file}, line 5: keys.app.help: 'nonsense' is not the name of a key")


def test_config_sets_a_key_that_can_be_used_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[keys]\n# mine\nfit.pin = 'f2'\n")
    monkeypatch.setenv("VRAMTOP_CONFIG", str(file))
    assert main(["config", "keys.fit.open", "F4"]) == 2
    assert "F4 is taken by fit.choose_gpus" in capsys.readouterr().err
    assert main(["config", "keys.fit.pin", "ctrl+b"]) == 0
    assert main(["config", "keys.dashboard.record", "R"]) == 0
    text = file.read_text()
    assert 'fit.pin = "ctrl+b"' in text
    assert "# mine" in text
    assert "R" in text
    assert main(["config", "--unset", "keys.fit.pin"]) == 0
    assert "fit.pin" not in file.read_text()
