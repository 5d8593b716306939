"""Terminal sizes: one sentence if it is too small, and the right layout without garbage after any resize."""

import pytest
from builders import make_budget
from screen_host import screen_lines
from slow_cases import first_quick
from textual.geometry import Size
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.sources.replay import demo_source
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.tty import terminal_app
from vramtop.tui.tty.terminal_app import MIN_SIZE, TooSmallScreen


@pytest.fixture
def app() -> VramtopApp:
    return VramtopApp(demo_source(), Watchlist(estimate=make_budget))


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (39, 24), (80, 9)])
async def test_a_terminal_that_is_too_small_shows_one_sentence_and_q_quits(app, size) -> None:
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, lambda: isinstance(app.screen, TooSmallScreen) and screen_lines(app)[0].strip())
        words = " ".join(" ".join(screen_lines(app)).split())
        whole = f"too small: {size[0]} x {size[1]} here, vramtop needs 40 x 10; q quits"
        assert words == (whole if size != (1, 1) else "t")
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize(
    "keys",
    first_quick([[], ["f"], ["question_mark"], ["ctrl+p"], ["slash", "x"]]),
)
async def test_the_open_screen_returns_when_the_terminal_is_large_enough(app, keys) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await until_shown(pilot, lambda: app.board)
        await pilot.press(*keys)
        await pilot.pause(0.3)
        opened = type(app.screen)
        for size in [(20, 5), (100, 30), (1, 1), (40, 2), (200, 60), (12, 3)]:
            await pilot.resize_terminal(*size)
        await until_shown(pilot, lambda: isinstance(app.screen, TooSmallScreen))
        await pilot.resize_terminal(100, 30)
        await until_shown(pilot, lambda: type(app.screen) is opened)
        await pilot.pause(0.1)
        assert {len(line) for line in map(str.rstrip, screen_lines(app))} - set(range(101)) == set()
        assert len(screen_lines(app)) == 30
        assert not [each for each in app.screen_stack if isinstance(each, TooSmallScreen)]


@pytest.mark.parametrize("size", [tuple(MIN_SIZE), (80, 24), (400, 100)])
async def test_every_other_size_shows_the_gpus_and_the_keys(app, size) -> None:
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, lambda: app.board and "Enter Open" in screen_lines(app)[-1])
        assert "gpubox-3" in screen_lines(app)[0]
        await until_shown(pilot, lambda: "79.6" in "\n".join(screen_lines(app)))


def test_a_burst_of_resizes_on_a_real_terminal_ends_with_the_last_size(on_terminal) -> None:
    dashboard = on_terminal("--demo", size=(80, 24))
    dashboard.wait_for("Quit")
    for at in range(60):
        dashboard.resize(1 + 37 * at % 211, 1 + 13 * at % 67)
        dashboard.read(0.01)
    dashboard.resize(132, 43)

    def redraws_for_the_last_size() -> bool:
        before = len(dashboard.written)
        dashboard.type("\x0c")  # Ctrl+L: otherwise only cells are drawn that an older frame left different
        for _ in range(10):
            dashboard.read()
        return all(text in dashboard.written[before:] for text in (b"CUDA 13.0", b"\x1b[43;1H"))

    dashboard.until(redraws_for_the_last_size)
    dashboard.type("q")
    assert dashboard.end() == 0
    assert b"Traceback" not in dashboard.written


async def test_an_app_that_received_an_older_size_last_asks_the_terminal(app, monkeypatch) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await until_shown(pilot, lambda: app.board)
        monkeypatch.setattr(terminal_app, "terminal_size_of", lambda _: Size(132, 43))
        await until_shown(pilot, lambda: app.size == (132, 43) and len(screen_lines(app)) == 43)
