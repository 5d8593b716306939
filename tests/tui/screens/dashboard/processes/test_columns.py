"""Columns of figures that are read on demand, and the columns that a setting names."""

from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_run, make_snapshot, make_watchlist
from screen_host import on_first_board
from waiting import until_shown

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.demand import CurrentDemand
from vramtop.monitor.snapshot.faults import FIRST_SAMPLE, Fault
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, ProcessFigures, Source
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.dashboard.process_columns import columns_for, columns_named, default_columns
from vramtop.tui.screens.dashboard.process_rows import SORTED_BY, in_order, table_rows
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.dashboard.table_view import TableView

GIB = 2**30


def with_figures(pid: int, sm: float | None, cpu: float | None, **changes: Any) -> GpuProcess:
    figures = ProcessFigures(sm_percent=sm, cpu_percent=cpu, rss_bytes=pid * GIB, threads=pid, **changes)
    return replace(make_process(pid, 10), figures=figures)


def make_board(gpus: list[GpuReading], **changes: Any) -> Board:
    """A board on which the processes 2 and 3 are the ranks of a run."""
    watchlist = make_watchlist(make_run("tune", 2, 3), device=20)
    return watchlist.update(make_snapshot(gpus, **changes))


def texts(board: Board, view: str = "processes") -> dict[int, dict[str, str]]:
    """The cells of each row by the pid of its first process."""
    table = TableView()
    table.name = view
    table.show_board(board)
    rows = [row for row in table.rows(words="", by="PID") if row.rows]
    return {row.rows[0].process.pid: {name: cell.text for name, cell in row.cells.items()} for row in rows}


def test_a_process_shows_its_figures_and_a_run_their_sum_or_mean():
    gpus = [make_gpu(0, [with_figures(2, 90.0, 150.4)]), make_gpu(1, [with_figures(3, 30.0, 1_000.0)])]
    single = texts(make_board(gpus))[2]
    assert [single[name] for name in ("SM %", "BW %", "CPU %", "RAM GiB", "THR")] == ["90", "…", "150", "2.0", "2"]
    run = texts(make_board(gpus), "runs")[2]
    assert [run[name] for name in ("SM %", "BW %", "CPU %", "RAM GiB", "THR")] == ["60", "…", "1150", "5.0", "5"]


def test_a_process_on_two_gpus_counts_once_and_unknown_ranks_are_marked():
    ended = Fault(field="cpu_percent", code="ENDED", message="this process has ended")
    both = with_figures(2, 80.0, 100.0)
    gpus = [make_gpu(0, [both]), make_gpu(1, [both]), make_gpu(2, [with_figures(3, None, None, faults=(ended,))])]
    run = texts(make_board(gpus), "runs")[2]
    assert (run["CPU %"], run["SM %"], run["THR"]) == ("≥100", "~80", "5")


def test_unknown_is_never_0():
    first = Fault(field="cpu_percent", code=FIRST_SAMPLE, message="needs two readings")
    refused = Fault(field="sm_percent", code="NOT_SUPPORTED", message="not reported")
    gpus = [make_gpu(0, [with_figures(5, None, None, faults=(first, refused)), make_process(6, 1)])]
    live = texts(make_board(gpus))
    assert (live[5]["CPU %"], live[5]["SM %"], live[6]["THR"]) == ("…", "n/a", "…")
    recorded = texts(make_board(gpus, source=Source(kind="recording")))
    assert (recorded[6]["THR"], recorded[5]["THR"]) == ("n/a", "5")


def test_rows_are_sorted_by_figures_with_unknown_ones_last():
    gpus = [make_gpu(0, [with_figures(5, 10.0, 300.0), make_process(6, 70), with_figures(7, 50.0, 200.0)])]
    rows = table_rows(make_board(gpus))
    assert [row.rows[0].process.pid for row in in_order(rows, "CPU") if row.rows] == [5, 7, 6]
    assert [row.rows[0].process.pid for row in in_order(rows, "SM") if row.rows] == [7, 5, 6]
    assert [row.rows[0].process.pid for row in in_order(rows, "THR") if row.rows] == [7, 5, 6]


def test_a_choice_is_kept_as_text_and_unknown_names_are_left_out():
    assert columns_named(None) is columns_named(()) is columns_named(("nonsense", "PAD")) is None
    assert columns_named(("GPU", "CPU %", "GPU", "nonsense")) == ("GPU", "CPU %")
    assert [column.name for column in columns_for(200, wanted=("COMMAND", "CPU %", "PID"))] == [
        "PID",
        "CPU %",
        "COMMAND",
    ]
    assert [column.name for column in columns_for(12, wanted=("CPU %", "PID"))] == ["CPU %"]
    texts = {column.name: column.width for column in columns_for(60, wanted=("PID", "STATUS", "CPU %"))}
    assert texts == {"PID": 7, "STATUS": 60 - 6 - 7 - 6, "CPU %": 6}  # text takes what is left, not a number


async def test_sorting_steps_through_the_columns_that_are_shown():
    source = ScriptedSource([make_snapshot([make_gpu(0, [make_process(used=30)])])])
    app = VramtopApp(source, Watchlist(lambda job: pytest.fail(f"nobody asks for {job}")))
    async with on_first_board(app, size=(80, 24)):
        table = app.screen.query_one(ProcessTable)
        assert "BUDGET" not in table.columns  # no process has one, and there is little room
        assert {SORTED_BY[table.sort_by_next()] for _ in SORTED_BY} == set(table.columns) - {"COMMAND"}


async def test_only_rows_in_sight_are_read():
    processes = [make_process(pid, 1, command=f"train{pid}") for pid in range(100, 400)]
    demand = CurrentDemand()
    options = AppOptions(
        interval=0.05,
        demand=demand,
        settings={"dashboard.columns": ("PID", "CPU %", "COMMAND"), "dashboard.view": "processes"},
    )
    app = VramtopApp(ScriptedSource([make_snapshot([make_gpu(0, processes)])]), Watchlist(lambda _: None), options)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, lambda: app.board is not None and demand.value.processes)
        await until_shown(pilot, lambda: app.screen.table.has_focus and app.screen.table.row_count >= 300)
        assert demand.value.process_figures == {"cpu_percent"}
        first = demand.value.processes
        assert 0 < len(first) < 24
        await pilot.press("end")
        await until_shown(pilot, lambda: not demand.value.processes & first)
        assert 0 < len(demand.value.processes) < 24


def test_where_a_process_runs_is_a_column_to_choose():
    job = "Slurm job 4711 step 0 (sft)"
    ranks = [replace(make_process(pid, 10), runs_in=job) for pid in (2, 3)]
    gpus = [make_gpu(0, [ranks[0]]), make_gpu(1, [ranks[1], make_process(9, 1)])]
    single = texts(make_board(gpus))
    assert (single[2]["RUNS IN"], single[9]["RUNS IN"]) == (job, "")
    assert texts(make_board(gpus), "runs")[2]["RUNS IN"] == job
    other = [gpus[0], make_gpu(1, [replace(ranks[1], runs_in="pod research/sft-1")])]
    assert texts(make_board(other), "runs")[2]["RUNS IN"] == f"{job} …"
    assert "RUNS IN" not in default_columns()
