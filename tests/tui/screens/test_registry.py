"""A screen is one row of the registry, which gives its key, its command palette entry and its help."""

from importlib import import_module

import pytest
from builders import ScriptedSource, make_gpu, make_snapshot, make_watchlist
from screen_host import on_first_board

from vramtop.tui.app.app import VramtopApp
from vramtop.tui.keys import KEYS
from vramtop.tui.screens.registry import SCREENS, ScreenSpec, preload_screens


def test_keys_and_names_are_unique() -> None:
    keys = {KEYS[f"dashboard.{spec.name}"].keys for spec in SCREENS}
    assert len({spec.name for spec in SCREENS}) == len(keys) == len(SCREENS)


async def test_the_palette_of_the_dashboard_has_every_screen() -> None:
    app = VramtopApp(ScriptedSource([make_snapshot([make_gpu()])]), make_watchlist())
    async with on_first_board(app):
        commands = {command.title: command.help for command in app.get_system_commands(app.screen)}
    assert commands.items() >= {(spec.title, spec.command_help) for spec in SCREENS}
    assert commands["Fit check"] == "Whether a job fits; reopens a pending job"
    assert {"Keys", "Maximize"}.isdisjoint(commands)  # they cover figures, and Escape does not close them


@pytest.mark.parametrize("spec", SCREENS, ids=lambda spec: spec.name)
def test_the_keys_of_each_row_can_be_imported(spec: ScreenSpec) -> None:
    assert bool(spec.keys) == bool(spec.bindings())


def test_every_module_that_is_loaded_before_a_key_needs_it_exists(monkeypatch):
    loaded: list[str] = []
    monkeypatch.setattr("vramtop.tui.screens.registry.preload_modules", loaded.extend)
    preload_screens()
    assert "vramtop.tui.screens.fit.screen" in loaded
    for name in loaded:
        import_module(name)
