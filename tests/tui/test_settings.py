"""The theme that the user chooses is the one of the next time."""

from collections.abc import Callable
from typing import Any

import pytest

from vramtop.monitor.watch import Watchlist
from vramtop.tui.app import VramtopApp


@pytest.fixture
def make_app(make_snapshot: Any, make_gpu: Any, scripted_source: Any) -> Callable[..., VramtopApp]:
    def make(**options: Any) -> VramtopApp:
        watchlist = Watchlist(lambda job: pytest.fail("no job is known"))
        return VramtopApp(scripted_source([make_snapshot([make_gpu()])]), watchlist, **options)

    return make


async def test_a_theme_that_is_chosen_is_kept(make_app: Callable[..., VramtopApp]) -> None:
    kept: list[str] = []
    app = make_app(theme="nord", keep_theme=kept.append)
    async with app.run_test() as pilot:
        assert app.theme == "nord"
        await pilot.pause()
        assert kept == []
        app.theme = "textual-light"
        await pilot.pause()
        assert kept == ["textual-light"]


async def test_a_theme_that_is_no_more_is_passed_over(make_app: Callable[..., VramtopApp]) -> None:
    app = make_app(theme="of-another-version")
    async with app.run_test():
        assert app.theme in app.available_themes
