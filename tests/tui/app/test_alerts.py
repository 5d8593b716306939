"""Alerts in the app: a notice, a bell or a notification, and the list."""

from collections.abc import Callable
from typing import Any

import pytest
from builders import FakeClock, ScriptedSource, make_gpu, make_snapshot
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app import user_signals
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.alerts import AlertsScreen
from vramtop.tui.widgets.static_lines import StaticLines

GIB = 2**30
SENTENCE = "11.0 GiB of GPU 0 belong to no visible process"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_app(clock: FakeClock) -> Callable[..., VramtopApp]:
    """The app on a machine with memory of no visible process on its GPU."""

    def make(kind: type[VramtopApp] = VramtopApp, **options: Any) -> VramtopApp:
        source = ScriptedSource([make_snapshot([make_gpu(0, used_bytes=11 * GIB)])])
        watchlist = Watchlist(lambda job: pytest.fail(f"nobody asks for {job}"))
        return kind(source, watchlist, AppOptions(interval=0.05, clock=clock, **options))

    return make


async def fires(pilot: Any, app: VramtopApp, clock: FakeClock) -> None:
    """Let the time pass until there is an alert."""
    await until_shown(pilot, lambda: app.board is not None)
    for _ in range(20):
        clock.time += 60
        app._board_at = clock.time
        app._watch_feed()
        await pilot.pause()
    assert [alert.condition.sentence for alert in app.alert_watch.states.firing] == [SENTENCE]


def notices(app: VramtopApp) -> list[str]:
    return [note.message for note in app._notifications]


def shown(app: VramtopApp, name: str) -> str:
    return app.screen.query_one(name, StaticLines).shown.plain


async def test_an_alert_is_a_notice_once(make_app, clock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await fires(pilot, app, clock)
        assert notices(app) == [SENTENCE]
        await until_shown(pilot, lambda: "1 alert (w)" in shown(app, "#header"))


@pytest.mark.slow
async def test_the_list_shows_what_fires(make_app: Callable[..., VramtopApp], clock: FakeClock) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        app._watch_feed()
        await pilot.press("w")
        await until_shown(pilot, lambda: isinstance(app.screen, AlertsScreen) and "Firing" in shown(app, "#list"))
        listed = shown(app, "#list")
        assert "Firing\nnone" in listed
        assert "an alert in 15 min" in listed
        assert SENTENCE in listed
        await fires(pilot, app, clock)
        await until_shown(pilot, lambda: "1 firing" in shown(app, "#title"))
        assert "Not for long enough" not in shown(app, "#list")
        await pilot.press("escape")
        await until_shown(pilot, lambda: not isinstance(app.screen, AlertsScreen))


@pytest.mark.slow
async def test_alerts_of_one_moment_are_one_notice(clock: FakeClock) -> None:
    gpus = [make_gpu(index, used_bytes=11 * GIB) for index in range(5)]
    watchlist = Watchlist(lambda job: pytest.fail(f"nobody asks for {job}"))
    app = VramtopApp(ScriptedSource([make_snapshot(gpus)]), watchlist, AppOptions(interval=0.05, clock=clock))
    async with app.run_test() as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        for _ in range(20):
            clock.time += 60
            app._board_at = clock.time
            app._watch_feed()
        sentences = [SENTENCE.replace("GPU 0", f"GPU {index}") for index in range(3)]
        await until_shown(pilot, lambda: notices(app) == ["\n".join([*sentences, "2 more: w lists the alerts"])])


@pytest.mark.slow
async def test_a_notification_of_the_terminal(make_app, clock, monkeypatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(user_signals, "write_to_terminal", lambda _, text: written.append(text))
    app = make_app(signal_alert="desktop")
    async with app.run_test() as pilot:
        await fires(pilot, app, clock)
        assert len(written) == 1
        assert SENTENCE in written[0]


@pytest.mark.slow
async def test_readings_that_cease_are_an_alert_and_a_pause_is_none(make_app, clock) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        app._sampler.pause()
        app._watch_feed()
        clock.time += 300
        app._watch_feed()
        assert not app.alert_watch or not app.alert_watch.states.waiting
        app._sampler.resume()
        app._failure = "the driver hangs"
        for _ in range(3):
            clock.time += 40
            app._watch_feed()
        sentence = "there is no recent reading of the GPUs: the driver hangs"
        await until_shown(pilot, lambda: notices(app) == [sentence])


@pytest.mark.slow
async def test_a_recording_raises_no_alerts(make_app: Callable[..., VramtopApp], clock: FakeClock) -> None:
    app = make_app(banner="a recording")
    async with app.run_test() as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        for _ in range(20):
            clock.time += 60
            app._watch_feed()
        await pilot.press("w")
        await until_shown(pilot, lambda: isinstance(app.screen, AlertsScreen) and shown(app, "#list"))
        assert shown(app, "#list").startswith("A recording raises no alerts")
        assert app.alert_watch is None
