"""The settings screen in the real app: what it lists, and what becomes of a change in the file and on the screen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomllib
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.storage.settings.change import save_setting
from vramtop.monitor.storage.settings.in_force import settings_in_force
from vramtop.tui.app.app import AppOptions, VramtopApp
from vramtop.tui.app.view_only_app import ViewOnlyApp
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.settings import KeyDialog, SettingRow, SettingsScreen
from vramtop.tui.widgets.choice import ChoiceMenu
from vramtop.tui.widgets.keys_line import KeysLine
from vramtop.tui.widgets.row_table import StaticLines

FILE = """\
# mine
[dashboard]
interval = 2.0  # slow machine
theme = "vramtop-light"

[keys]
fit.pin = "f2"
"""
MakeApp = Callable[..., VramtopApp]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    monkeypatch.setenv("VRAMTOP_CONFIG", str(path))
    return path


@pytest.fixture
def make_app(
    file: Path, make_snapshot: Any, make_gpu: Any, make_process: Any, make_budget: Any, scripted_source: Any
) -> MakeApp:
    """Make the app with the settings in force, as the command line does."""

    def make(kind: type[VramtopApp] = VramtopApp, **flags: Any) -> VramtopApp:
        settings = settings_in_force()
        values = {**settings.values, **{f"dashboard.{name}": value for name, value in flags.items()}}
        origins = {**settings.origins, **{f"dashboard.{name}": f"--{name}" for name in flags}}
        assert settings.file == str(file)
        return kind(
            scripted_source([make_snapshot([make_gpu(0, [make_process(4711)])])]),
            Watchlist(make_budget),
            AppOptions(
                interval=values["dashboard.interval"],
                theme=values["dashboard.theme"],
                settings=values,
                origins=origins,
                settings_file=settings.file,
                save_setting=lambda name, value: save_setting(name, value, pytest.fail),
            ),
        )

    return make


async def open_settings(pilot: Any) -> SettingsScreen:
    app = pilot.app
    await until_shown(pilot, lambda: app.board is not None)
    await pilot.press("comma")
    await until_shown(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen.settings_list.rows)
    screen = app.screen
    assert isinstance(screen, SettingsScreen)
    return screen


async def go_to(pilot: Any, screen: SettingsScreen, name: str) -> None:
    """Put the cursor on a setting by its filter."""
    await pilot.press("slash", *["full_stop" if letter == "." else letter for letter in name], "enter")
    await until_shown(pilot, lambda: (row := screen.settings_list.setting) and row.name == name)


def rows(screen: SettingsScreen) -> list[SettingRow]:
    return [each for each in screen.settings_list.rows if isinstance(each, SettingRow)]


def row(screen: SettingsScreen, name: str) -> tuple[str, str]:
    """The value of a setting as it is listed, and its origin."""
    return next((each.text, each.origin) for each in rows(screen) if each.name == name)


def details(screen: SettingsScreen) -> str:
    return screen.query_one("#details", StaticLines).shown.plain


def saved(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


async def test_every_setting_and_every_key_is_listed_with_value_and_origin(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMTOP_ALERTS_SIGNAL", "bell")
    app = make_app(sort="VRAM")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        assert row(screen, "dashboard.interval") == ("2", "file")
        assert row(screen, "dashboard.view") == ("runs", "default")
        assert row(screen, "dashboard.sort") == ("VRAM", "--sort")
        assert row(screen, "alerts.signal") == ("bell", "VRAMTOP_ALERTS_SIGNAL")
        assert row(screen, "keys.fit.pin") == ("F2", "file")
        assert row(screen, "keys.dashboard.attach") == ("a", "default")
        assert "Seconds between readings of this machine" in details(screen)
        assert "a number between 0.1 and 86400; default: 1" in details(screen)
        lines = [screen.settings_list.cells_of(each).plain for each in screen.settings_list.rows]
        assert lines[0] == "The dashboard  [dashboard]"
        assert max(map(len, lines)) <= 78
        await pilot.press("escape")
        await until_shown(pilot, lambda: isinstance(app.screen, DashboardScreen))


@pytest.mark.slow
async def test_a_number_is_checked_as_it_is_typed_saved_and_applied_at_once(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        await pilot.press("enter", "end", "backspace", "0")
        await until_shown(pilot, lambda: "✗ give a number between 0.1 and 86400" in details(screen))
        await pilot.press("enter")
        assert saved(file)["dashboard"]["interval"] == 2.0
        await pilot.press("backspace", "5")
        await until_shown(pilot, lambda: "Enter saves it" in details(screen))
        await pilot.press("enter")
        await until_shown(pilot, lambda: saved(file)["dashboard"]["interval"] == 5.0)
        assert "# slow machine" in file.read_text()
        assert app.feed.interval == 5.0
        assert row(screen, "dashboard.interval") == ("5", "file")


@pytest.mark.slow
async def test_reset_removes_a_setting_from_the_file(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        assert app.theme == "vramtop-light"
        await go_to(pilot, screen, "dashboard.theme")
        await pilot.press("d")
        await until_shown(pilot, lambda: "theme" not in saved(file)["dashboard"])
        assert app.theme == "vramtop-dark"
        assert row(screen, "dashboard.theme") == ("vramtop-dark", "default")


@pytest.mark.slow
async def test_a_choice_is_chosen_from_its_words_and_a_switch_is_switched(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        await go_to(pilot, screen, "dashboard.view")
        await pilot.press("enter")
        await until_shown(pilot, lambda: isinstance(app.screen, ChoiceMenu))
        await pilot.press("down", "enter")
        await until_shown(pilot, lambda: saved(file)["dashboard"].get("view") == "tree")
        await pilot.press("escape")
        await go_to(pilot, screen, "attach.automatic")
        assert "from the next start on" in details(screen)
        await pilot.press("enter")
        await until_shown(pilot, lambda: saved(file).get("attach") == {"automatic": False})
        await pilot.press("escape", "escape")
        await until_shown(pilot, lambda: isinstance(app.screen, DashboardScreen))
        dashboard = app.screen
        assert isinstance(dashboard, DashboardScreen)
        assert dashboard.table.view == "tree"


@pytest.mark.slow
async def test_a_key_is_pressed_checked_saved_and_in_force_at_once(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        await go_to(pilot, screen, "keys.dashboard.fit_check")
        await pilot.press("enter")
        await until_shown(pilot, lambda: isinstance(app.screen, KeyDialog))
        await pilot.press("a")
        await until_shown(
            pilot, lambda: "a is taken by dashboard.attach" in str(app.screen.query_one("#refusal").render())
        )
        await pilot.press("F")
        await until_shown(pilot, lambda: app.screen is screen)
        await until_shown(
            pilot,
            lambda: (
                saved(file)["keys"].get("dashboard") == {"fit_check": "F"}
                or saved(file)["keys"].get("dashboard.fit_check") == "F"
            ),
        )
        assert row(screen, "keys.dashboard.fit_check") == ("F", "file")
        await pilot.press("escape", "escape")
        await until_shown(pilot, lambda: isinstance(app.screen, DashboardScreen))
        await until_shown(pilot, lambda: "F Fit" in str(app.screen.query_one(KeysLine).render()))


@pytest.mark.slow
async def test_several_keys_are_typed(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        await go_to(pilot, screen, "keys.fit.pin")
        await pilot.press("e", "ctrl+u", *"F9")
        await until_shown(pilot, lambda: "✗ F9 is taken by fit.copy" in details(screen))
        await pilot.press("ctrl+u", *"f2,ctrl+b", "enter")
        await until_shown(pilot, lambda: saved(file)["keys"]["fit"]["pin"] == ["f2", "ctrl+b"])
        assert row(screen, "keys.fit.pin") == ("F2  Ctrl+B", "file")


async def test_what_a_flag_overrides_is_saved_for_later_and_says_so(make_app: MakeApp, file: Path) -> None:
    app = make_app(interval=7.0)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        assert "--interval takes precedence until vramtop ends; changes are saved" in details(screen)
        await pilot.press("enter", "ctrl+u", "3", "enter")
        await until_shown(pilot, lambda: saved(file)["dashboard"]["interval"] == 3.0)
        assert row(screen, "dashboard.interval") == ("7", "--interval")
        assert "config.toml has 3" in details(screen)
        assert app.feed.interval == 7.0


@pytest.mark.slow
async def test_the_filter_narrows_the_list_and_says_when_nothing_matches(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        every = len(rows(screen))
        await pilot.press("slash", *"quiet")
        await until_shown(pilot, lambda: 0 < len(rows(screen)) < 6)
        assert all("quiet" in f"{each.name} {each.about}".lower() for each in rows(screen))
        await pilot.press(*"zzz")
        await until_shown(pilot, lambda: "nothing matches; Esc shows all" in details(screen))
        await pilot.press("escape")
        await until_shown(pilot, lambda: len(rows(screen)) == every)


async def test_a_filter_that_hides_the_setting_under_the_cursor_puts_it_on_the_first(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        await pilot.press("down", "down", "slash", *"theme")
        await until_shown(pilot, lambda: 0 < len(rows(screen)) < 6)
        assert screen.settings_list.setting == rows(screen)[0]


@pytest.mark.slow
async def test_a_program_is_not_named_from_a_browser(
    make_app: MakeApp, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_settings(pilot)
        monkeypatch.setattr("vramtop.tui.screens.settings.is_served", lambda: True)
        await go_to(pilot, screen, "alerts.command")
        await pilot.press("enter", *"rm", "enter")
        assert file.read_text() == FILE
        assert any("is not changed from a browser" in notice.message for notice in app._notifications)
        await pilot.press("escape")
        await go_to(pilot, screen, "alerts.quiet_hours")
        await pilot.press("enter", "ctrl+u", *"22", "colon", *"00-07", "colon", *"00", "enter")
        await until_shown(pilot, lambda: saved(file).get("alerts") == {"quiet_hours": "22:00-07:00"})


async def test_settings_are_not_changed_with_view_only(make_app: MakeApp) -> None:
    app = make_app(ViewOnlyApp)
    async with app.run_test(size=(120, 24)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await pilot.press("comma")
        await pilot.press("f")
        assert isinstance(app.screen, DashboardScreen)
        footer = str(app.screen.query_one(KeysLine).render())
        assert "Attach" in footer
        assert "Fit" not in footer
        assert "Kill" not in footer
