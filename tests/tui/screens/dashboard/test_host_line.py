"""The line about the host: only where there is room, and read only while it is shown."""

import pytest
from builders import ScriptedSource, make_board, make_gpu, make_snapshot, make_watchlist
from screen_host import screen_lines
from waiting import until_shown

from vramtop.monitor.snapshot.demand import CurrentDemand, Demand
from vramtop.monitor.snapshot.snapshot import HostLoad
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.dashboard.header_text import host_line, needed_height

GIB = 2**30
LOAD = HostLoad(
    cpu_percent=37.4, cpus=64, ram_used_bytes=212 * GIB, ram_total_bytes=503 * GIB, swap_used_bytes=0,
    swap_total_bytes=8 * GIB, load=(23.1, 22.0, 21.74),
)  # fmt: skip
WORDS = "host · CPU 37 % of 64 cores · RAM 212.0 of 503.0 GiB · swap 0.0 of 8.0 GiB · load 23.1 22.0 21.7"


def test_the_line_in_words() -> None:
    assert host_line(LOAD, 120).plain == WORDS
    assert host_line(LOAD, 60).plain == "host · CPU 37 % of 64 cores · RAM 212.0 of 503.0 GiB"
    limited = HostLoad(
        cpus=0.5, cpu_limited=True, ram_used_bytes=31 * GIB, ram_total_bytes=32 * GIB, ram_limited=True,
        swap_total_bytes=0,
    )  # fmt: skip
    assert (
        host_line(limited, 120).plain
        == "host · CPU n/a of 0.5 cores (container) ·  ! RAM 31.0 of 32.0 GiB (container) "
    )
    assert host_line(HostLoad(), 120).plain == "host · CPU n/a · RAM n/a"


@pytest.mark.parametrize(("height", "gpus", "room"), [(24, 1, False), (30, 8, True), (40, 16, True), (40, 24, False)])
def test_the_line_goes_first_where_there_is_no_room(height: int, gpus: int, room: bool) -> None:
    board = make_board([make_gpu(at) for at in range(gpus)])
    assert (height >= needed_height(board)) == room


async def test_its_readings_are_asked_for_while_there_is_room() -> None:
    demand = CurrentDemand()
    source = ScriptedSource([make_snapshot([make_gpu()], host=LOAD)])
    app = VramtopApp(source, make_watchlist(), AppOptions(interval=0.05, demand=demand))
    async with app.run_test(size=(120, 30)) as pilot:
        await until_shown(pilot, lambda: demand.value.host)
        await until_shown(pilot, lambda: screen_lines(app)[1].strip() == WORDS)
        await pilot.resize_terminal(80, 24)
        await until_shown(pilot, lambda: demand.value == Demand())
        assert "host" not in screen_lines(app)[1]
