"""A driver that does not let this user list processes: they are unknown, and nowhere "none"."""

import json
from collections.abc import Iterator

import pynvml
import pytest
from builders import make_budget
from command_line import vramtop
from fake_driver import GIB, FakeDriver, FakeGpu, FakeProcess

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.board import AttachProgress, Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.fleet.board_reading import reading_of_board
from vramtop.monitor.fleet.fleet import Fleet
from vramtop.monitor.fleet.hosts_board import hosts_snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.tui.screens.dashboard.gpu_rows import gpu_status
from vramtop.tui.screens.dashboard.process_rows import table_rows
from vramtop.tui.screens.dashboard.summary_line import summary_line


@pytest.fixture
def driver(driver: FakeDriver) -> FakeDriver:
    driver.gpus = [FakeGpu(processes=[FakeProcess(1, GIB)]), FakeGpu(processes=[])]
    driver.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION, 0)
    return driver


@pytest.fixture
def board(driver: FakeDriver) -> Iterator[Board]:
    source = NvmlSource()
    source.open()
    board = Watchlist(estimate=make_budget).update(source.read())
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
