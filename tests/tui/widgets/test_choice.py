import pytest
from textual.app import App, ComposeResult

from vramtop.tui.widgets.choice import Choice

WORDS = ("none", "full", "selective")


class Host(App[None]):
    """Three lines, a choice at each end."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def compose(self) -> ComposeResult:
        yield Choice(WORDS, "full", id="first")
        yield Choice(tuple(f"word {number}" for number in range(30)), "word 20", id="long")

    def on_choice_changed(self, event: Choice.Changed) -> None:
        self.heard.append(event.value)


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (["right"], ["selective"]),
        (["right", "right"], ["selective", "none"]),
        (["left"], ["none"]),
        (["enter", "down", "enter"], ["selective"]),
        (["space", "up", "enter"], ["none"]),
        (["enter", "down", "escape"], []),
        (["enter", "enter"], []),
    ],
)
async def test_keys_select_a_value(keys, chosen):
    app = Host()
    async with app.run_test(size=(40, 12)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        assert app.heard == chosen
        assert app.query_one("#first", Choice).value == (chosen or ["full"])[-1]


async def test_enter_toggles_between_two_values():
    class TwoWords(Host):
        def compose(self) -> ComposeResult:
            yield Choice(("no", "yes"), "no")

    app = TwoWords()
    async with app.run_test() as pilot:
        await pilot.press("enter", "enter", "space")
        await pilot.pause()
        assert app.heard == ["yes", "no", "yes"]


async def test_the_mouse_selects_a_value_and_a_click_beside_the_list_changes_nothing():
    app = Host()
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.click("#first")
        await pilot.click(offset=(50, 19))
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert app.heard == []
        await pilot.click("#first")
        await pilot.click("OptionList", offset=(2, 2))
        await pilot.pause()
        assert app.heard == ["selective"]


async def test_the_value_is_drawn_with_a_sign_that_there_are_others():
    app = Host()
    async with app.run_test(size=(20, 12)):
        assert str(app.query_one("#first", Choice).render()).split() == ["full", "▼"]
