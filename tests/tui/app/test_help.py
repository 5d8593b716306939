"""The help is built from the bindings of the screens."""

import pytest
from screen_host import ScreenHost, screen_lines
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.help import HelpScreen, help_content
from vramtop.tui.screens.attach.screen import ATTACH_KEYS
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.fit.screen import FIT_KEYS
from vramtop.tui.screens.registry import SCREENS

_SELF_EXPLANATORY = ("Back", "Show all", "Settings", "Run")


@pytest.mark.parametrize(
    "bindings",
    [DashboardScreen.BINDINGS, ProcessTable.BINDINGS, VramtopApp.BINDINGS, FIT_KEYS, ATTACH_KEYS],
    ids=["dashboard", "process table", "app", "fit check", "attach"],
)
def test_every_key_in_the_footer_is_in_the_help(bindings: list[BindingType]) -> None:
    text = " ".join(help_content(app_bindings=VramtopApp.BINDINGS).plain.split())
    shown = [each for each in bindings if isinstance(each, Binding) and each.show]
    explained = [each.group for each in shown if each.group and each.tooltip]
    for binding in shown:
        assert binding.tooltip in text
        assert binding.tooltip or binding.description in _SELF_EXPLANATORY or binding.group in explained


@pytest.mark.parametrize("title", ["", *(screen.title for screen in SCREENS if screen.keys)])
def test_no_sentence_of_the_short_help_is_cut(title: str) -> None:
    keys, _, _ = HelpScreen([title], VramtopApp.BINDINGS).short().plain.partition("\n\n")
    assert "…" not in keys


@pytest.mark.parametrize("title", ["", *(screen.title for screen in SCREENS if screen.keys)])
async def test_the_keys_fit_one_screen_of_80_columns_and_24_lines(title: str) -> None:
    screen = HelpScreen([title], VramtopApp.BINDINGS)
    async with ScreenHost(screen).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        box = screen.query_one(VerticalScroll)
        assert not box.show_vertical_scrollbar
        shown = "\n".join(screen_lines(pilot.app))
        assert "▲ OVER" in shown
        assert "Reading a panel" not in shown
        screen.action_more()
        await pilot.pause()
        assert box.show_vertical_scrollbar  # all of it, in sentences
        screen.action_more()
        await pilot.pause()
        assert pilot.app.screen is not screen
