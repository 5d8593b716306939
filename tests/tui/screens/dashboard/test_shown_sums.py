"""Displayed memory adds up to the total, of random readings; what the driver does not tell is unknown everywhere."""

import json
from collections.abc import Iterator

import pynvml
import pytest
from builders import make_board, make_gpu, make_process, make_watchlist, no_job
from command_line import vramtop
from fake_driver import FakeDriver, FakeGpu, FakeProcess
from hypothesis import given, settings, strategies as st
from json_schemas import valid_json

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.board import AttachProgress, Board
from vramtop.monitor.fleet.board_reading import reading_of_board
from vramtop.monitor.fleet.fleet import Fleet
from vramtop.monitor.fleet.hosts_board import hosts_snapshot
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.tui.cli.board_json import board_json
from vramtop.tui.draw.gpu_bars import held_cells
from vramtop.tui.screens.dashboard.gpu_rows import gpu_status
from vramtop.tui.screens.dashboard.header_text import summary_line
from vramtop.tui.screens.dashboard.process_rows import table_rows


@st.composite
def readings(draw):
    """A GPU whose driver reports all, some or nothing of its memory and processes."""
    sizes = draw(st.lists(st.none() | st.integers(1, 30 * GIB), max_size=6))
    processes = [make_process(pid, None, used_bytes=size) for pid, size in enumerate(sizes, start=100)]
    rest, reserved = draw(st.integers(0, 20 * GIB)), draw(st.none() | st.integers(0, GIB))
    used = sum(size or 0 for size in sizes) + rest
    total = used + (reserved or 0) + draw(st.integers(0, 40 * GIB)) + 1
    facts = {"total_bytes": total, "reserved_bytes": reserved, "used_bytes": used}
    facts["free_bytes"] = total - (reserved or 0) - used
    for name in draw(st.sets(st.sampled_from([*facts, "utilisation_percent", "power_w", "temperature_c"]))):
        facts[name] = None
    gpu = make_gpu(0, processes, **facts)
    return gpu if draw(st.booleans()) else replace(gpu, processes=None)


def board_of(gpu):
    return make_board([gpu], estimate=no_job)


@settings(max_examples=100)
@given(data=st.data())
def test_rows_and_json_add_up_to_the_used_memory(data):
    gpu: GpuReading = data.draw(readings())
    board = board_of(gpu)
    rows = table_rows(board)
    for row in rows:
        if row.row is not None:
            assert (row.cells["VRAM GiB"].text == "n/a") == (row.row.process.used_bytes is None)
    (shown,) = valid_json("once", json.dumps(board_json(board)))["gpus"]
    for name in ("total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "unattributed_bytes"):
        assert shown[name] == getattr(gpu, name)
    sizes = [process["used_bytes"] for process in shown["processes"] or ()]
    unknown = gpu.used_bytes is None or gpu.processes is None or None in sizes
    assert (shown["unattributed_bytes"] is None) == unknown
    if not unknown:
        assert sum(sizes) + shown["unattributed_bytes"] == gpu.used_bytes
        left = gpu.used_bytes - sum(row.row.process.used_bytes for row in rows if row.row)
        assert any(row.row is None for row in rows) == (left >= GIB / 20)  # less is displayed as 0.0 GiB


@settings(max_examples=100)
@given(data=st.data(), width=st.integers(10, 200))
def test_the_bar_of_observed_memory_is_never_longer_than_the_gpu(data, width):
    gpu: GpuReading = data.draw(readings())
    if gpu.total_bytes is None:
        return
    (row,) = board_of(gpu).gpus
    cells = held_cells(row, width)
    assert len(cells) <= width
    drawn = sum(cell.ground is not None or cell.char not in " ·" for cell in cells)
    held = (gpu.used_bytes or 0) + (gpu.reserved_bytes or 0)
    if gpu.used_bytes is not None and gpu.processes is not None:
        assert abs(drawn - held * width / gpu.total_bytes) <= len(gpu.processes) + 3  # each part is rounded


def test_a_contradiction_is_shown_in_the_table():
    fault = Fault(field="unattributed_bytes", code="IMPLAUSIBLE", message="the processes hold more than is used")
    gpu = make_gpu(0, [make_process(100, 30)], used_bytes=20 * GIB, faults=(fault,))
    assert gpu.unattributed_bytes is gpu.remaining_bytes is None
    *_, rest = table_rows(board_of(gpu))
    assert rest.cells["VRAM GiB"].text == "n/a"
    assert "the processes hold more than is used" in rest.cells["COMMAND"].text


def test_figures_from_before_a_hang_are_distinguished_from_new_ones():
    fault = Fault(field=None, code=NO_ANSWER, message="the driver hangs on this GPU")
    gpus = [make_gpu(0, [make_process(100, 30)], faults=(fault,)), make_gpu(1, [make_process(101, 30)])]
    board = make_board(gpus, estimate=no_job)
    cells = {row.row.process.pid: row.cells for row in table_rows(board) if row.row}
    assert (cells[100]["STATUS"].text, cells[101]["STATUS"].text) == ("! old figure", "-")
    assert (cells[100]["VRAM GiB"].tone, cells[101]["VRAM GiB"].tone) == ("muted", "plain")


@pytest.fixture
def driver(driver: FakeDriver) -> FakeDriver:
    driver.gpus = [FakeGpu(processes=[FakeProcess(1, GIB)]), FakeGpu(processes=[])]
    driver.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION, 0)
    return driver


@pytest.fixture
def board(driver: FakeDriver) -> Iterator[Board]:
    source = NvmlSource()
    source.open()
    board = make_watchlist().update(source.read())
    yield replace(board, attach_progress=AttachProgress(0, 0))
    source.close()


def test_the_dashboard_says_that_they_are_unknown(board: Board) -> None:
    assert summary_line(board, 140).plain.startswith("processes of GPU 0 unknown: press f")
    assert [row.gpu.index for row in table_rows(board) if row.gpu.processes is None] == [0]


def test_the_list_of_hosts_says_neither_idle_nor_no_budget(board: Board) -> None:
    host = reading_of_board(board, host="host")
    rows = hosts_snapshot(Fleet(board.snapshot.time, (host,)), "one host").rows
    assert [gpu_status(row, 20).plain.strip() for row in rows] == ["processes n/a", "idle"]


def test_once_says_why_and_its_json_has_null(driver: FakeDriver) -> None:
    assert "GPU 0: the driver does not let this user read its compute processes" in vramtop("--once", code=0).out
    first, second = json.loads(vramtop("--once", "--json", code=0).out)["gpus"]
    assert (first["processes"], first["faults"][0]["code"], second["processes"]) == (None, "NO_PERMISSION", [])
