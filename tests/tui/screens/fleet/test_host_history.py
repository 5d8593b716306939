"""The screen of a host draws the memory of its GPUs over the last hour where the source knows it."""

import asyncio
from collections.abc import Mapping, Sequence

from screen_host import screen_lines
from waiting import until_shown

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, HostReading
from vramtop.tui.app.app import FleetOptions
from vramtop.tui.app.fleet_app import FleetApp
from vramtop.tui.screens.fleet.screen import FleetTable

NOW = 2_000_000_000.0
GPU = {"total_bytes": 80 * GIB, "used_bytes": 40 * GIB, "free_bytes": 40 * GIB, "name": "NVIDIA H100"}
HOST = HostReading(
    host="node1",
    time=NOW,
    since=NOW,
    gpus=tuple(FleetGpu(index=at, uuid=f"GPU-{at}", **GPU) for at in range(2)),
)
Readings = Sequence[tuple[float, int | None]]


class Source:
    """One host; the first half of the last hour its first GPU was half full, then full, then not read."""

    fails = False

    def read(self) -> Fleet:
        return Fleet(NOW, (HOST,))

    def memory_history(self, host: str, seconds: float) -> Mapping[str, Readings]:
        assert (host, seconds) == ("node1", 3600.0)
        if self.fails:
            raise CannotTellError("no answer")
        sizes = [40 * GIB] * 60 + [80 * GIB] * 30 + [None] * 30
        return {"GPU-0": [(NOW - 3600 + at * 30, size) for at, size in enumerate(sizes)]}

    def close(self) -> None: ...


def shown(source: Source, *, wait: bool) -> list[str]:
    """Open the host; return the lines of its screen, once the graph is there if that is waited for."""
    lines: list[str] = []

    async def run() -> None:
        app = FleetApp(source, FleetOptions(source="Prometheus", interval=0.1))
        async with app.run_test(size=(100, 24)) as pilot:
            await until_shown(pilot, lambda: app.screen.query(FleetTable) and app.screen.query_one(FleetTable).rows)
            await pilot.press("enter")
            await until_shown(pilot, lambda: any("GPU 1" in line for line in screen_lines(app)))
            if wait:
                await until_shown(pilot, lambda: any("last hour" in line for line in screen_lines(app)))
            else:
                await app.workers.wait_for_complete()
            lines.extend(screen_lines(app))

    asyncio.run(run())
    return lines


def test_a_gpu_with_a_history_has_a_graph_with_its_gap() -> None:
    lines = shown(Source(), wait=True)
    (graph,) = [line for line in lines if "last hour" in line]  # the other GPU has none
    bars = graph.split("last hour", 1)[1].rstrip()
    half, full = bars.count("▄"), bars.count("█")
    assert half > full > 0
    assert bars.rindex("█") < 0.8 * 86  # then the gap, to the right edge
    assert bars.index("█") > bars.index("▄")


def test_a_source_that_cannot_say_leaves_the_screen_without_graphs() -> None:
    source = Source()
    source.fails = True
    assert not any("last hour" in line for line in shown(source, wait=False))
