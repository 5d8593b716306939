"""The dashboard over many hosts, driven through the real app."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from screen_host import screen_lines, screen_text
from scripted_fleets import HOSTS, NOW, ScriptedFleets, host
from slow_cases import first_quick
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetPending, FleetProcess, HostReading
from vramtop.monitor.fleet.hosts_board import HostsSource, HostsWatchlist
from vramtop.tui.app.options import AppOptions
from vramtop.tui.app.view_only_app import HostsApp
from vramtop.tui.screens.dashboard.gpu_rows import GpuRows
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.gpu.screen import GpuScreen

H100 = {"name": "NVIDIA H100", "total_bytes": 80 * GIB, "used_bytes": 0, "free_bytes": 80 * GIB}


@asynccontextmanager
async def opened(
    hosts: Sequence[HostReading] = HOSTS,
    size: tuple[int, int] = (120, 30),
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[HostsApp, Any, ScriptedFleets]]:
    """Run the app, and wait until the first fleet is shown."""
    source = ScriptedFleets(hosts)
    watchlist = HostsWatchlist(lambda _: pytest.fail("a job of another host is estimated there"))
    app = HostsApp(HostsSource(source, "5 hosts over ssh"), watchlist, AppOptions(interval=0.1, clock=clock))
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, lambda: app.screen.query(GpuRows) and app.screen.query_one(GpuRows).rows)
        await pilot.pause()
        yield app, pilot, source
    assert source.closed.is_set()


def processes(app: HostsApp) -> list[tuple[str, int]]:
    rows = app.screen.query_one(ProcessTable).rows
    return [(row.host.text, row.row.process.pid) for row in rows if row.row is not None]


def line_of(app: HostsApp, name: str) -> str:
    return next(line for line in screen_lines(app) if line[1:].startswith(name))


@pytest.mark.parametrize("size", first_quick([(80, 24), (120, 40), (200, 60)]))
async def test_gpus_are_grouped_by_host_below_sums_over_live_hosts(size) -> None:
    async with opened(size=size) as (app, _, _):
        text = screen_text(app)
        for words in ("1 of 5 silent (node4)", "1 of 7 processes diverging", "free 374.0 of 800.0 GiB", "HOST    GPU"):
            assert words in text
        assert "node4: last read" not in text  # the row of the host says it
        assert "OVER" in line_of(app, "node2     1")
        assert processes(app)[:2] == [("node2", 701), ("node10", 700)]


async def test_a_host_without_figures_of_now_has_one_row_that_says_why() -> None:
    async with opened() as (app, pilot, source):
        gone = line_of(app, "node4")
        assert "! unreachable last read 3 min ago: Connection refused" in " ".join(gone.split())
        assert "20.0" not in gone  # its figures are old
        assert ("node4", 700) not in processes(app)
        silent = msgspec.structs.replace(HOSTS[1], state="silent", reason="no reading arrives", since=NOW)
        source.fleet = Fleet(NOW + 300, (HOSTS[0], silent, host("node5", None, state="connecting", since=None)))
        await until_shown(pilot, lambda: "last read 5 min ago: no reading arrives" in line_of(app, "node2"))
        assert "connecting" in line_of(app, "node5")
        assert {name for name, _ in processes(app)} == {"node1"}


async def test_keys_filter_and_sort_as_on_one_machine() -> None:
    async with opened() as (app, pilot, _):
        await pilot.press("slash")
        app.screen.query_one(Input).value = "user:bob"
        await until_shown(pilot, lambda: processes(app) == [("node10", 700)])
        app.screen.query_one(Input).value = "node2 over"
        await until_shown(pilot, lambda: processes(app) == [("node2", 701)])
        await pilot.press("escape", "s", "s")
        await until_shown(pilot, lambda: "GPU↓" in screen_text(app))
        assert [name for name, _ in processes(app)] == ["node1"] * 4 + ["node2"] * 2 + ["node10"]


async def test_enter_tells_of_the_process_and_opens_the_gpu_as_its_host_describes_them() -> None:
    async with opened() as (app, pilot, _):
        await pilot.press("enter")
        await until_shown(pilot, lambda: bool(app._notifications))
        (told,) = app._notifications
        for words in ("tune", "holds 66 GiB", "rank 5 of 8"):
            assert words in told.message
        await pilot.press("g")
        await until_shown(pilot, lambda: isinstance(app.screen, GpuScreen) and "GPU node2:1" in screen_text(app))
        assert "readings of other hosts have no bandwidth, clocks" in screen_text(app)


@pytest.mark.parametrize("key", ["a", "f", "k", "r", "x"])
async def test_keys_for_this_machine_alone_are_refused(key) -> None:
    async with opened() as (app, pilot, _):
        await pilot.press(key)
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_a_source_that_fails_is_said_and_its_figures_get_old() -> None:
    late = [0.0]
    async with opened(clock=lambda: time.monotonic() + late[0]) as (app, pilot, source):
        source.fleet = CannotTellError("ssh cannot be started")
        await until_shown(pilot, lambda: "! ssh cannot be started" in " ".join(screen_text(app).split()))
        late[0] = 90.0
        await until_shown(pilot, lambda: "! figures are 1 min old" in screen_text(app))


MIG = (
    FleetGpu(index=0, label="0:1", total_bytes=10 * GIB, used_bytes=5 * GIB, free_bytes=5 * GIB),
    FleetGpu(index=0, label="0:2", total_bytes=10 * GIB, used_bytes=0, free_bytes=10 * GIB),
)
ODD = {
    "no driver": (host("odd", faults=("no driver is loaded",)), ["no GPU no driver is loaded"]),
    "a lost GPU": (
        host("odd", gpus=(FleetGpu(index=1, fault="it has fallen off the bus", is_lost=True),)),
        ["odd:1: it has fallen off the bus", "! lost"],
    ),
    "a driver that hangs": (
        host("odd", gpus=(FleetGpu(index=0, fault="no answer for 9 s", is_stale=True, **H100),)),
        ["odd:0: no answer for 9 s", "! hangs"],
    ),
    "a GPU that sleeps": (host("odd", gpus=(FleetGpu(index=0, is_asleep=True, fault="it is asleep"),)), ["! asleep"]),
    "processes that cannot be read": (
        host("odd", gpus=(FleetGpu(index=0, fault="not permitted", **H100),)),
        ["processes n/a"],
    ),
    "MIG devices": (
        host("odd", gpus=(FleetGpu(index=0, devices=MIG, processes=(FleetProcess(pid=4, device="0:1"),), **H100),)),
        ["odd   0:1", "odd   0:2"],
    ),
    "processes without a pid": (
        host("odd", gpus=(FleetGpu(index=0, processes=(FleetProcess(user="ann", note="3 other processes"),), **H100),)),
        ["odd     ann", "3 other processes"],
    ),
    "a pending job": (
        host("odd", None, pending=(FleetPending(job="next", verdict="fits", sentence="on GPU 0"),)),
        ["pending odd: next", "FITS", "on GPU 0"],
    ),
    "what the host says": (host("odd", None, anomalies=("GPU 0: forgotten",)), ["! odd: GPU 0: forgotten"]),
}


@pytest.mark.parametrize("name", ODD)
async def test_what_is_unusual_on_a_host_is_said(name) -> None:
    reading, words = ODD[name]
    async with opened([reading]) as (app, _, _):
        text = "\n".join(" ".join(line.split()) for line in screen_lines(app))
        for each in words:
            assert " ".join(each.split()) in text
