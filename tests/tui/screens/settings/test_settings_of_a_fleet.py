"""Settings and keys of the user in the dashboard over many hosts."""

from typing import Any

import pytest
from scripted_fleets import HOSTS, ScriptedFleets
from waiting import until_shown

from vramtop.tui.app.app import FleetOptions
from vramtop.tui.app.fleet_app import FleetApp
from vramtop.tui.screens.fleet.screen import FleetScreen
from vramtop.tui.screens.settings import KeyDialog, SettingsScreen
from vramtop.tui.widgets.keys_line import KeysLine


@pytest.mark.slow
async def test_a_key_of_a_fleet_is_changed_on_the_settings_screen_and_moves_the_cursor_of_the_table() -> None:
    saved: dict[str, Any] = {}
    options = FleetOptions(
        source="5 hosts over ssh",
        interval=60.0,
        settings={"keys": {"list.down": ("down", "j")}},
        save_setting=saved.__setitem__,
    )
    app = FleetApp(ScriptedFleets(HOSTS), options)
    async with app.run_test(size=(100, 24)) as pilot:
        screen = app.screen
        assert isinstance(screen, FleetScreen)
        await until_shown(pilot, lambda: screen.table.rows)
        before = screen.table.cursor_row
        await pilot.press("j")
        assert screen.table.cursor_row == before + 1
        await pilot.press("comma")
        await until_shown(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen.settings_list.rows)
        settings: Any = app.screen
        await pilot.press("slash", *"fleet", "full_stop", *"sort", "enter")
        await until_shown(pilot, lambda: settings.settings_list.setting.name == "keys.fleet.sort")
        await pilot.press("enter")
        await until_shown(pilot, lambda: isinstance(app.screen, KeyDialog))
        await pilot.press("S")
        await until_shown(pilot, lambda: saved == {"keys.fleet.sort": "S"})
        await pilot.press("escape", "escape")
        await until_shown(pilot, lambda: app.screen is screen)
        await until_shown(pilot, lambda: "S Sort" in str(screen.query_one(KeysLine).render()))
