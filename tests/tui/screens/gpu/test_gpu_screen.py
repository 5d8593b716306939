"""The GPU screen: what it shows, what it asks the driver for, and how it opens."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from builders import make_gpu, make_mig_gpu, make_process, make_snapshot
from rich.cells import cell_len
from screen_host import app_of, on_first_board, screen_lines, screen_text
from waiting import until_shown

from vramtop.estimator.common.records import replace
from vramtop.monitor.snapshot.demand import CurrentDemand
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.gpu_details import EccErrors, GpuDetails, NvLinks, PcieLink, RemappedRows
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.screens.dashboard.gpu_rows import GpuRows
from vramtop.tui.screens.gpu.screen import GpuScreen

DETAILS = GpuDetails(
    level="full",
    clock_reasons=0x4 | 0x20,
    fan_percents=(30, 42),
    sm_mhz=1200,
    sm_max_mhz=1980,
    memory_mhz=2619,
    memory_max_mhz=2619,
    performance_state=0,
    memory_temperature_c=88,
    slowdown_c=87,
    shutdown_c=92,
    encoder_percent=5,
    decoder_percent=0,
    power_default_w=700.0,
    power_max_w=700.0,
    ecc_enabled=True,
    ecc=EccErrors(recent_corrected=3, recent_uncorrected=0, lifetime_corrected=120, lifetime_uncorrected=2),
    remapped_rows=RemappedRows(after_corrected=1, after_uncorrected=0, pending=True, failed=False),
    persistence=True,
    bar1_total_bytes=2**37,
    bar1_used_bytes=2**30,
    pcie=PcieLink(
        generation=1, max_generation=5, width=16, max_width=16, sent_per_second=2 * 10**9,
        received_per_second=10**10, replays=0,
    ),
    nvlink=NvLinks(
        count=18, active=17, version=4, link_bytes_per_second=26_562_000_000, peers=("switch",),
        sent_per_second=4 * 10**10,
    ),
    vbios="96.00.74.00.01",
    compute_capability="9.0",
    pci_address="0000:34:00.0",
    numa_node=0,
    near_cpus="0-31,64-95",
)  # fmt: skip
SHOWN = (
    "! hot  the driver lowers its clocks: the GPU or its memory is too hot",
    "60.0 of 80.0 GiB, free 19.5",
    "compute",
    "98 %",
    "bandwidth",
    "54 %",
    "412 of 700 W (59 %)",
    "63 °C, slows at 87, memory 88",
    "SM 1200 of 1980 MHz · memory 2619 of 2619 MHz · P0 (fastest)",
    "30 %, 42 % · encoder 5 % · decoder 0 %",
    "gen 1 x16 (at most gen 5 x16) · to host 2.00 GB/s · from host 10.00 GB/s · replays 0",
    " ! 17 of 18 links up, to switches  · version 4 · 26.56 GB/s each · sent 40.00 GB/s",
    "received …",
    "on ·  ! uncorrected errors: 0 since load, 2 ever ",
    "corrected 3 since load, 120 ever · remapped rows 1",
    " ! a row is remapped at the next reset ",
    "persistence on · compute mode default · power limit 700 W (the highest) · off at 92 °C",
    "PCI 0000:34:00.0 · VBIOS 96.00.74.00.01 · compute capability 9.0 · BAR1 1.0 of 128.0 GiB · NUMA node 0",
    "nearest CPUs 0-31,64-95",
)


def open_app(snapshots: Sequence[Snapshot]) -> tuple[VramtopApp, CurrentDemand]:
    """Make an app that shows these snapshots, and what it asks for."""
    demand = CurrentDemand()
    return app_of(snapshots, interval=0.05, demand=demand, clock=lambda: 0.0), demand  # readings never count as late


@pytest.fixture
def two_gpus() -> Snapshot:
    gpu = make_gpu(0, [make_process(4711, 59.0)], memory_utilisation_percent=54, compute_mode="default")
    return make_snapshot([replace(gpu, details=DETAILS), make_gpu(1, [make_process(4712, 20.0)])])


async def shown(pilot: Any) -> GpuScreen:
    """Wait until the GPU screen has drawn its figures."""
    await until_shown(pilot, lambda: isinstance(pilot.app.screen, GpuScreen) and pilot.app.screen.is_mounted)
    await until_shown(pilot, lambda: "compute" in screen_text(pilot.app))
    await pilot.pause()
    return pilot.app.screen


@asynccontextmanager
async def on_gpu_screen(app: VramtopApp, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Any]:
    """Run the dashboard, and open the screen of the GPU under the cursor."""
    async with on_first_board(app, size) as pilot:
        await pilot.press("g")
        await shown(pilot)
        yield pilot


async def test_g_shows_all_of_the_gpu_of_the_process_and_asks_for_it_only_meanwhile(two_gpus) -> None:
    app, demand = open_app([two_gpus])
    async with on_gpu_screen(app) as pilot:
        assert demand.value.gpus == {"GPU-00000000": "full"}
        text = screen_text(app)
        assert not [words for words in SHOWN if words not in text]
        assert "4711" in text
        assert "4712" not in text
        await pilot.press("escape")
        await until_shown(pilot, lambda: "full" not in demand.value.gpus.values())


async def test_a_gpu_without_fans_has_none_and_is_not_called_a_mig_device() -> None:
    gpu = replace(make_gpu(0), details=replace(DETAILS, fan_percents=()))
    app, _ = open_app([make_snapshot([gpu])])
    async with on_gpu_screen(app):
        fans = next(line for line in screen_lines(app) if line.startswith(" fans"))
        assert fans.partition("·")[0].split() == ["fans", "none"]


async def test_arrows_go_to_the_next_gpu_and_after_the_last_to_the_first(two_gpus) -> None:
    app, demand = open_app([two_gpus])
    async with on_gpu_screen(app, (80, 24)) as pilot:
        assert max(map(cell_len, screen_lines(app))) <= 80
        await pilot.press("right")
        assert screen_lines(app)[0].startswith(" GPU 1 ")
        assert "… reading clocks, links and health" in screen_lines(app)[1]
        assert demand.value.gpus == {"GPU-00000001": "full"}
        await pilot.press("right")
        assert screen_lines(app)[0].startswith(" GPU 0 ")
        await pilot.press("left")
        assert screen_lines(app)[0].startswith(" GPU 1 ")


async def test_enter_on_a_row_and_a_click_on_a_panel_open_the_gpu(two_gpus) -> None:
    many = replace(two_gpus, gpus=tuple(make_gpu(index) for index in range(12)))
    app, _ = open_app([many])
    async with app.run_test(size=(100, 30)) as pilot:
        await until_shown(pilot, lambda: app.board is not None and app.screen.query_one(GpuRows).rows)
        app.screen.query_one(GpuRows).focus()
        await pilot.press("down", "down", "enter")
        await shown(pilot)
        assert screen_lines(app)[0].startswith(" GPU 2 ")
    app, _ = open_app([two_gpus])
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: app.board is not None and app.screen.query("GpuPanel"))
        await pilot.pause()
        await pilot.click(app.screen.query("GpuPanel")[1])
        await shown(pilot)
        assert screen_lines(app)[0].startswith(" GPU 1 ")


async def test_figures_that_are_unknown_have_their_reasons_and_are_not_0() -> None:
    faults = tuple(
        Fault(field=field, code="NOT_SUPPORTED", message=f"this GPU does not report {what}")
        for field, what in (("fan_percents", "its fans"), ("nvlink", "NVLinks"), ("ecc_enabled", "whether ECC is on"))
    )
    nothing = GpuDetails(level="full", clock_reasons=0, faults=faults)
    gpu = make_gpu(0, [make_process()], utilisation_percent=None, power_w=None, temperature_c=None, details=nothing)
    app, _ = open_app([make_snapshot([gpu])])
    async with on_gpu_screen(app):
        text = screen_text(app)
        assert "n/a: this GPU does not report its fans, NVLinks, whether ECC is on" in text
        assert "clocks are not throttled" in text
        assert "0 %" not in text
        for label in ("compute", "bandwidth", "power", "temperature", "clocks", "fans", "PCIe", "NVLink", "ECC"):
            assert "n/a" in next(line for line in screen_lines(app) if line.startswith(f" {label}"))


async def test_a_recording_says_what_it_has_not(two_gpus) -> None:
    source = replace(two_gpus.source, kind="recording")
    app, _ = open_app([replace(two_gpus, source=source)])
    async with on_gpu_screen(app, (80, 24)) as pilot:
        assert "hot" in screen_lines(app)[1]
        await pilot.press("right")
        assert "the recording has no bandwidth, clocks, links or health of this GPU" in screen_lines(app)[1]


async def test_a_gpu_that_hangs_has_old_figures_with_their_age_and_one_that_goes_is_said_to_be_gone(two_gpus) -> None:
    message = "the driver hangs on this GPU: nvmlDeviceGetPcieThroughput has not returned for 7 s"
    stale = replace(
        two_gpus.gpus[0], faults=(Fault(field=None, code=NO_ANSWER, message=message),), read_at=two_gpus.time - 7
    )
    app, demand = open_app([replace(two_gpus, gpus=(stale, two_gpus.gpus[1]))])
    async with on_gpu_screen(app) as pilot:
        assert "! 7 s old" in screen_lines(app)[0]
        assert message in screen_lines(app)[1]
        assert "SM 1200 of 1980 MHz" in screen_text(app)
        app._sampler._source.snapshots = [replace(two_gpus, gpus=two_gpus.gpus[1:], time=two_gpus.time + 1)]
        await until_shown(pilot, lambda: "no longer listed" in screen_lines(app)[1])
        await until_shown(pilot, lambda: not demand.value.gpus)


async def test_a_mig_device_shows_its_memory_and_the_activity_of_its_gpu() -> None:
    process = make_process(4711, 10.0, gpu_instance=9, compute_instance=0)
    gpu = make_mig_gpu(0, [process], utilisation_percent=None, details=DETAILS)
    app, demand = open_app([make_snapshot([gpu])])
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: app.board is not None and app.screen.table.row_count)
        await pilot.press("g")
        await shown(pilot)
        assert screen_lines(app)[0].startswith(" GPU 0:9 ")
        assert "1.0 of 20.0 GiB" in screen_text(app)
        assert "412 of 700 W" in screen_text(app)
        assert "the figures below are for the whole GPU 0" in screen_text(app)
        assert demand.value.gpus == {"GPU-00000000": "full"}
