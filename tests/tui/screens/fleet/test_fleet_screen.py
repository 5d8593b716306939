"""The dashboard over many hosts, driven through the real app."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from screen_host import screen_lines, screen_text
from scripted_fleets import HOSTS, NOW, ScriptedFleets, host
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, HostReading
from vramtop.tui.app.app import FleetOptions
from vramtop.tui.app.fleet_app import FleetApp, FleetUpdated
from vramtop.tui.screens.fleet.screen import FleetTable


def drive(
    check: Callable[..., Any],
    hosts: Sequence[HostReading] = HOSTS,
    size: tuple[int, int] = (120, 30),
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the app until the first fleet is shown, then the check, which gets app, pilot and source."""

    async def run() -> None:
        source = ScriptedFleets(hosts)
        app = FleetApp(source, FleetOptions(source="5 hosts over ssh", interval=0.1, clock=clock))
        async with app.run_test(size=size) as pilot:
            await until_shown(pilot, lambda: app.screen.query(FleetTable) and app.screen.query_one(FleetTable).rows)
            await pilot.pause()
            await check(app, pilot, source)
        assert source.closed.is_set()

    asyncio.run(run())


def row_names(app: FleetApp) -> list[str]:
    return [row.host for row in app.screen.query_one(FleetTable).rows]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_hosts_are_worst_first_and_sums_are_of_live_hosts(size) -> None:
    async def check(app, pilot, source):
        assert row_names(app) == ["node2", "node4", "node10", "node1", "node3"]
        lines = screen_lines(app)
        assert "free 374.0" in lines[1]
        assert "commit" in lines[1]
        assert "unattr" in lines[1]
        assert "1 of 5 hosts silent" in lines[1] or "1 silent" in lines[1]
        assert "diverging" in lines[1]
        gone = next(line for line in lines if "node4" in line)
        assert "unreachable" in gone
        assert "last read 3 min ago: Connection refused" in gone
        assert "20.0" not in gone  # its figures are old

    drive(check, size=size)


def test_keys_unfold_sort_and_filter() -> None:
    async def check(app, pilot, source):
        await pilot.press("right")
        assert row_names(app)[:5] == ["node2"] * 4 + ["node4"]
        assert "GPU 1" in screen_text(app)
        await pilot.press("left", "s")
        assert row_names(app) == ["node1", "node2", "node3", "node4", "node10"]
        await pilot.press("slash")
        app.screen.query_one(Input).value = "user:bob"
        await pilot.pause()
        assert row_names(app) == ["node10"]
        await pilot.press("escape", "slash", *"over")
        assert row_names(app) == ["node2"]

    drive(check)


def test_enter_opens_the_host_and_follows_the_readings() -> None:
    async def check(app, pilot, source):
        await pilot.press("enter")
        await until_shown(pilot, lambda: "Host node2" in screen_text(app))
        assert "66.0 GiB of 60.0 predicted · ▲ OVER · tune · rank 5 of 8 · ann" in screen_text(app)
        gone = msgspec.structs.replace(HOSTS[1], state="silent", reason="no reading arrives", since=NOW)
        source.fleet = Fleet(NOW + 300, (HOSTS[0], gone))
        await until_shown(pilot, lambda: "Readings from 5 min ago, not current" in screen_text(app))

    drive(check)


def test_a_source_that_fails_is_said_and_comes_back() -> None:
    async def check(app, pilot, source):
        fleet, source.fleet = source.fleet, CannotTellError("ssh cannot be started")
        await until_shown(pilot, lambda: "! ssh cannot be started" in " ".join(screen_text(app).split()))
        source.fleet = Fleet(NOW + 1, fleet.hosts)
        await until_shown(pilot, lambda: "ssh cannot be started" not in screen_text(app))

    drive(check)


def test_figures_of_a_source_that_hangs_are_said_to_be_old() -> None:
    async def check(app, pilot, source):
        source.fleet = CannotTellError("no answer")
        await until_shown(pilot, lambda: "no answer" in screen_text(app))
        late[0] = 90.0
        await until_shown(pilot, lambda: "! figures are 1 min old" in screen_text(app))

    late = [0.0]
    drive(check, clock=lambda: time.monotonic() + late[0])


@pytest.mark.slow
def test_of_a_thousand_hosts_only_those_in_sight_are_drawn() -> None:
    hosts = [host(f"node{at:04}", *["on_budget"] * 8, first=8 * at) for at in range(1000)]

    async def check(app, pilot, source):
        table = app.screen.query_one(FleetTable)
        assert len(table.rows) == 1000
        before = table.drawn_lines
        assert before < 200
        source.fleet = Fleet(NOW + 1, (*hosts[:-1], msgspec.structs.replace(hosts[-1], state="silent")))
        await until_shown(pilot, lambda: table.rows[0].host == "node0999")
        await pilot.press("end", "home")
        assert table.drawn_lines - before < 200

    drive(check, hosts)


def test_hosts_whose_gpus_cannot_be_read_stand_before_those_that_work() -> None:
    hosts = [host("works", None), host("lost", None, None), host("dead", faults=("no driver is loaded",))]
    gone = FleetGpu(index=1, name="NVIDIA H100", fault="it has fallen off the bus", is_lost=True)
    sleeping = host("sleeps", gpus=(FleetGpu(index=0, is_asleep=True, fault="it is asleep"),))
    hosts[1] = msgspec.structs.replace(hosts[1], gpus=(hosts[1].gpus[0], gone))

    async def check(app, pilot, source):
        assert row_names(app) == ["dead", "lost", "sleeps", "works"]
        lines = screen_lines(app)
        dead = next(line for line in lines if "dead" in line)
        assert "! no GPU" in dead
        assert "no driver is loaded" in dead
        assert "! 1 GPU lost" in next(line for line in lines if " lost" in line)
        await pilot.press("down", "right")
        assert "it has fallen off the bus" in screen_text(app)
        await pilot.press("slash", *"status:lost")
        assert set(row_names(app)) == {"lost"}
        await pilot.press("escape")
        assert "asleep" in next(line for line in screen_lines(app) if "sleeps" in line)

    drive(check, [*hosts, sleeping])


def test_what_is_in_use_has_no_bar_where_it_is_unknown() -> None:
    shared = FleetGpu(index=0, name="NVIDIA GB10", total_bytes=20 * GIB, free_bytes=19 * GIB, processes=())

    async def check(app, pilot, source):
        line = next(line for line in screen_lines(app) if "shared" in line)
        assert "19.0" in line
        assert "·" not in line
        assert "█" in next(line for line in screen_lines(app) if "known" in line)

    drive(check, [host("known", "on_budget"), host("shared", gpus=(shared,))])


@pytest.mark.parametrize("width", [80, 120])
def test_the_figures_of_a_gpu_are_whole_and_its_name_is_what_is_cut(width) -> None:
    busy = host("node1", "on_budget").gpus[0]
    changes = {"committed_bytes": 3 * GIB, "unattributed_bytes": 2 * GIB, "utilisation_percent": 97}
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    long = msgspec.structs.replace(busy, name=name, **changes)
    quiet = msgspec.structs.replace(busy, index=1, unattributed_bytes=1000)

    async def check(app, pilot, source):
        await pilot.press("enter")
        await until_shown(pilot, lambda: "Host node1" in screen_text(app))
        line = next(line for line in screen_lines(app) if "GPU 0" in line)
        assert "60.0 of 80.0 GiB in use, 20.0 free, 3.0 committed, 2.0 unattributed" in line
        assert "util 97 %" in line or width == 80
        assert ("RTX PRO 6000" in line) == (width == 120)
        assert "unattributed" not in next(line for line in screen_lines(app) if "GPU 1" in line)

    drive(check, [host("node1", gpus=(long, quiet))], size=(width, 30))


@pytest.mark.parametrize("width", [80, 120])
def test_sums_beyond_a_tib_have_units_of_their_own(width) -> None:
    async def check(app, pilot, source):
        line = screen_lines(app)[1]
        assert "free 1.56 TiB" in line
        assert ("of 1.56 TiB" in line) == (width == 120)
        assert "0.0 GiB" in line  # not 0.00 TiB

    drive(check, [host(f"node{at}", *[None] * 4) for at in range(5)], size=(width, 24))


@pytest.mark.slow
def test_the_help_explains_keys_sums_and_statuses() -> None:
    async def check(app, pilot, source):
        await pilot.press("question_mark", "question_mark")
        await until_shown(pilot, lambda: "Sums, over all live hosts" in screen_text(app))
        text = screen_text(app)
        for words in (
            "sort by the next column",
            "unattributed: memory in use",
            "! unreachable",
            "still loading",
        ):
            assert words in text
        await pilot.press("escape")
        assert row_names(app)

    drive(check, size=(120, 70))


def test_a_reading_that_arrives_while_the_app_ends_is_no_error() -> None:
    async def run() -> None:
        app = FleetApp(ScriptedFleets(HOSTS), FleetOptions(source="5 hosts over ssh", interval=60.0))
        async with app.run_test() as pilot:
            await until_shown(pilot, lambda: app.screen.query(FleetTable) and app.screen.query_one(FleetTable).rows)
            screens = list(app._screen_stack)
            app._screen_stack.clear()  # as Textual does before the last messages are handled
            app.on_fleet_updated(FleetUpdated(Fleet(NOW, HOSTS), None))
            app._screen_stack.extend(screens)

    asyncio.run(run())
