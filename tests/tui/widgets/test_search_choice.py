from textual.app import App, ComposeResult
from textual.widgets import Input
from waiting import until_shown

from vramtop.tui.widgets.match_list import MatchList, SearchChoice, SearchMenu

WORDS = ("A100", "H100", "L40S", "RTX 4090")


class Host(App[None]):
    def compose(self) -> ComposeResult:
        yield SearchChoice(WORDS, "L40S")


async def test_all_words_are_listed_again_when_what_was_typed_is_deleted():
    app = Host()
    async with app.run_test(size=(40, 12)) as pilot:

        def highlighted() -> str | None:
            return app.screen.query_one(MatchList).highlighted

        await pilot.press("enter")
        await until_shown(pilot, lambda: isinstance(app.screen, SearchMenu) and highlighted() == "L40S")
        await pilot.press("h")
        await until_shown(pilot, lambda: highlighted() == "H100")
        await pilot.press("backspace")
        await until_shown(pilot, lambda: app.screen.query_one(Input).value == "" and highlighted() == "L40S")
        assert str(app.screen.query_one(MatchList).render()).split() == " ".join(WORDS).split()  # those above it too
        await pilot.press("down", "enter")
        await until_shown(pilot, lambda: app.query_one(SearchChoice).value == "RTX 4090")
