"""Alerts over many hosts in the app: the notice, the badge, the user's command, the list, an outage and a pause."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from screen_host import screen_lines
from waiting import until_shown

from vramtop.estimator.common.errors import CannotTellError
from vramtop.monitor.alerts.fleet_watch import FleetWatch
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, HostReading
from vramtop.tui.app.app import FleetOptions
from vramtop.tui.app.fleet_app import FleetApp
from vramtop.tui.background.notices import Notices
from vramtop.tui.cli.main import main
from vramtop.tui.screens.alerts import AlertsScreen, alert_lines

GIB = 2**30
SENTENCE = "node7 is unreachable: Connection refused"


def host(name: str, **changes: Any) -> HostReading:
    gpu = FleetGpu(index=0, total_bytes=80 * GIB, used_bytes=0, free_bytes=80 * GIB, unattributed_bytes=0, processes=())
    return HostReading(**{"host": name, "time": 1.0, "since": 1.0, "gpus": (gpu,), **changes})


GONE = msgspec.structs.replace(host("node7"), state="unreachable", reason="Connection refused")


class ScriptedFleets:
    """A source whose hosts a test replaces; an error is raised in their place."""

    def __init__(self) -> None:
        self.hosts: tuple[HostReading, ...] | Exception = (host("node1"), host("node7"))
        self.time = 0.0

    def read(self) -> Fleet:
        if isinstance(self.hosts, Exception):
            raise self.hosts
        self.time += 1
        return Fleet(self.time, self.hosts)

    def close(self) -> None:
        """Nothing is open."""


class Clock:
    """Monotonic seconds that only the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def drive(check: Callable[..., Any], **options: Any) -> None:
    """Run the app until the first fleet is there, then the check, which gets app, pilot and a way to let time pass."""

    async def run() -> None:
        source, clock = ScriptedFleets(), Clock()
        app = FleetApp(source, FleetOptions(source="2 hosts", interval=0.1, clock=clock, **options))

        async def passes(pilot: Any, seconds: int, hosts: tuple[HostReading, ...] | Exception | None = None) -> None:
            """Have these hosts read, and let time pass with a reading every five seconds, unless reading fails."""
            source.hosts, at = source.hosts if hosts is None else hosts, source.time
            fails = isinstance(source.hosts, Exception)
            if not fails and not app._paused:
                await until_shown(pilot, lambda: app.fleet is not None and app.fleet.time > at + 1)
            for _ in range(seconds // 5):
                clock.now += 5
                app._updated_at = app._updated_at if fails or app._paused else clock.now
                app._tick()

        async with app.run_test(size=(100, 24)) as pilot:
            await until_shown(pilot, lambda: app.fleet is not None)
            await check(app, pilot, passes)

    asyncio.run(run())


def notices(app: FleetApp) -> list[str]:
    return [note.message for note in app._notifications]


@pytest.mark.slow
def test_a_host_that_goes_away_is_a_notice_a_badge_a_command_and_in_the_list(tmp_path: Path) -> None:
    told = tmp_path / "told"
    kept: list[tuple[str, str]] = []

    async def check(app: FleetApp, pilot: Any, passes: Any) -> None:
        await passes(pilot, 10)
        assert app.feed.alerts == 0
        await passes(pilot, 85, (host("node1"), GONE))
        await until_shown(pilot, lambda: notices(app) == [SENTENCE])
        await until_shown(pilot, lambda: told.exists() and told.read_text().endswith("\n"))
        assert told.read_text() == f"VramtopHostSilent|firing|{SENTENCE}|node7|1\n"
        await until_shown(pilot, lambda: "1 alert (w)" in screen_lines(app)[0])
        await pilot.press("w")
        await until_shown(pilot, lambda: isinstance(app.screen, AlertsScreen) and SENTENCE in str(screen_lines(app)))
        assert "Alerts · 1 firing" in screen_lines(app)[0]
        await pilot.press("e", *"22:00-07:00", "enter")
        await until_shown(pilot, lambda: kept == [("alerts.quiet_hours", "22:00-07:00")])
        await pilot.press("w")
        await until_shown(pilot, lambda: not isinstance(app.screen, AlertsScreen))

    facts = "$VRAMTOP_ALERT|$VRAMTOP_ALERT_STATE|$VRAMTOP_ALERT_SENTENCE|$VRAMTOP_HOST|$VRAMTOP_ALERT_COUNT"
    drive(check, on_alert=f'echo "{facts}" >> {told}', save_setting=lambda *setting: kept.append(setting))


def test_an_outage_and_a_pause_change_nothing() -> None:
    async def check(app: FleetApp, pilot: Any, passes: Any) -> None:
        await passes(pilot, 30, (host("node1"), GONE))
        source_fails = CannotTellError("Prometheus does not answer")
        await passes(pilot, 5, source_fails)
        await until_shown(pilot, lambda: app.feed.failure is not None)
        await passes(pilot, 3600)
        assert app.alert_watch is not None
        (waiting,) = app.alert_watch.states.waiting
        assert waiting.held_seconds <= 35
        app.action_pause()
        await passes(pilot, 3600, (host("node1"), GONE))
        assert app.alert_watch.states.firing == ()
        assert notices(app) == []

    drive(check)


@pytest.mark.parametrize("source", [["--host", "node1"], ["--prometheus", "http://127.0.0.1:9"]])
def test_the_options_are_accepted_over_many_hosts(source: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    alerts = ["--on-alert", "true", "--signal-alert", "bell", "--quiet-hours", "22:00-07:00"]
    assert main([*source, *alerts]) == 2
    assert "the dashboard needs a terminal" in capsys.readouterr().err  # and nothing about the alerts
    assert main([*source, *alerts, "--once"]) == 2
    assert "--on-alert is for the dashboard, not for --once" in capsys.readouterr().err


def test_many_alerts_of_one_kind_take_few_lines_and_others_stay_in_sight() -> None:
    def shown(count: int) -> list[str]:
        watch = FleetWatch(5.0)
        hosts = [msgspec.structs.replace(GONE, host=f"node{at:03}") for at in range(count)]
        lost = host("lost", gpus=(FleetGpu(index=0, is_lost=True, fault="it does not answer"),))
        for second in range(0, 300, 5):
            watch.tick(Fleet(float(second), (*hosts, lost)), float(second))
        return [line.plain.strip() for line in alert_lines(watch, 0.0, 100)]

    many = shown(12)
    assert len(many) == 1 + (1 + 12) + 2
    assert many[1].startswith("GPU lost   since ")
    assert many[2] == "GPU 0 of lost cannot be read: it does not answer"
    assert many[3] == "host silent   12 alerts, since"
    assert many[4].endswith("  node000 is unreachable: Connection refused")
    assert shown(2)[3].startswith("host silent   since ")
    assert shown(150)[-1] == "and 120 more"
    assert len(shown(150)) == 1 + 2 + (1 + 30 + 1)


def test_settings_choose_the_alerts_and_what_is_wrong_with_them_is_said_at_the_start() -> None:
    kept: list[tuple[str, object]] = []

    async def check(app: FleetApp, pilot: Any, passes: Any) -> None:
        assert notices(app) == ["something is wrong"]
        await passes(pilot, 10)
        await passes(pilot, 85, (host("node1"), GONE))
        assert app.feed.alerts == 0
        assert notices(app) == ["something is wrong"]
        app.theme = "nord"
        await until_shown(pilot, lambda: kept == [("dashboard.theme", "nord")])

    drive(
        check,
        settings={"alerts.off": ("no_readings",)},
        notices=Notices(["something is wrong"]),
        save_setting=lambda *setting: kept.append(setting),
    )
