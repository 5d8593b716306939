"""A screen is one row of the registry, which gives its key, its command palette entry and its help."""

import sys
from importlib import import_module
from types import ModuleType

import pytest
from builders import ScriptedSource, make_gpu, make_snapshot
from textual.binding import Binding
from textual.screen import Screen
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.help import help_content
from vramtop.tui.keys import KEYS, Key
from vramtop.tui.screens.base import BoardApp
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.registry import SCREENS, ScreenSpec, preload_screens, screen_bindings

MADE_UP = ScreenSpec(name="made_up", label="Made up", title="Made-up", open="made_up:open_made_up", keys="made_up:KEYS")


class MadeUpScreen(Screen[None]):
    TITLE = MADE_UP.title


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a screen that exists only in this test."""

    def open_made_up(app: BoardApp) -> None:
        app.push_once(MadeUpScreen())

    module = ModuleType("vramtop.tui.screens.made_up")
    vars(module).update(open_made_up=open_made_up, KEYS=[Binding("z", "zoom", tooltip="zooms the made-up screen")])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("vramtop.tui.app.app.SCREENS", (*SCREENS, MADE_UP))
    monkeypatch.setitem(KEYS, "dashboard.made_up", Key("m", "opens the made-up screen"))

    class WithMadeUp(DashboardScreen):
        BINDINGS = screen_bindings((MADE_UP,))

    monkeypatch.setattr(VramtopApp, "get_default_screen", lambda _: WithMadeUp())


@pytest.mark.usefixtures("made_up")
async def test_a_screen_is_added_by_a_row_and_its_key() -> None:
    source = ScriptedSource([make_snapshot([make_gpu()])])
    app = VramtopApp(source, Watchlist(lambda job: pytest.fail(f"nobody asks for {job}")))
    async with app.run_test() as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        commands = {command.title: command.help for command in app.get_system_commands(app.screen)}
        assert commands["Made-up"] == "Opens the made-up screen"
        assert {"Keys", "Maximize"}.isdisjoint(commands)  # they cover figures, and Escape does not close them
        await pilot.press("m")
        await until_shown(pilot, lambda: isinstance(app.screen, MadeUpScreen))
    text = help_content([MADE_UP.title], screens=(MADE_UP,)).plain
    assert text.split("\n")[1] == "Keys of the made-up screen"
    assert "zooms the made-up screen" in text


def test_keys_and_names_are_unique() -> None:
    keys = {KEYS[f"dashboard.{spec.name}"].keys for spec in SCREENS}
    assert len({spec.name for spec in SCREENS}) == len(keys) == len(SCREENS)


@pytest.mark.parametrize("spec", SCREENS, ids=lambda spec: spec.name)
def test_the_keys_of_each_row_can_be_imported(spec: ScreenSpec) -> None:
    assert bool(spec.keys) == bool(spec.bindings())


def test_every_module_that_is_loaded_before_a_key_needs_it_exists(monkeypatch):
    loaded: list[str] = []
    monkeypatch.setattr("vramtop.tui.background.preload.preload_modules", loaded.extend)
    preload_screens()
    assert "vramtop.tui.screens.fit.screen" in loaded
    for name in loaded:
        import_module(name)
