"""The keys in the footer of a screen, and the memory that a closed screen leaves."""

from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from waiting import until_shown

from vramtop.tui.widgets.keys_line import KeysLine


class Keys(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "say('a')", "Attach"),
        Binding("b,c", "say('b')", "Both", key_display="b"),
        Binding("d", "say('d')", "Dim"),
        Binding("e", "say('e')", "Hidden", show=False),
        Binding("h", "help", "Help"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.said = ""

    def compose(self) -> ComposeResult:
        yield KeysLine()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if parameters == ("d",) else True

    def action_say(self, word: str) -> None:
        self.said += word


def line(app: App[None]) -> str:
    return str(app.screen.query_one(KeysLine).render())


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (60, f"{'a Attach b Both d Dim h Help':<50}^p palette"),
        (30, "a Attach b Both d Dim h Help"),
        (16, "a Attach h Help"),
    ],
)
async def test_each_key_with_room_is_shown_once_whole_and_the_help_always(width: int, shown: str) -> None:
    app = Keys()
    async with app.run_test(size=(width, 5)) as pilot:
        await pilot.pause()
        assert line(app) == shown


async def test_a_click_presses_the_key_and_opens_the_palette() -> None:
    app = Keys()
    async with app.run_test(size=(60, 5)) as pilot:
        await pilot.pause()
        for x, said in ((0, "a"), (7, "a"), (8, ""), (9, "b"), (16, ""), (40, "")):
            app.said = ""
            await pilot.click(KeysLine, offset=(x, 0))
            await pilot.pause()
            assert app.said == said, x
        await pilot.click(KeysLine, offset=(55, 0))
        await until_shown(pilot, lambda: type(app.screen).__name__ == "CommandPalette")
