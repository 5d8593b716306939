from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_run, make_snapshot, make_watchlist, no_job
from screen_host import TableApp, on_first_board, table_of
from waiting import until_shown

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.board import Board
from vramtop.monitor.snapshot.demand import CurrentDemand
from vramtop.monitor.snapshot.figures import FIRST_SAMPLE, Fault
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, ProcessFigures, Source
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.draw.palette import STATUSES
from vramtop.tui.screens.dashboard.process_columns import DEFAULT_COLUMNS, columns_for, columns_named, without_folder
from vramtop.tui.screens.dashboard.process_rows import SORTED_BY, in_order, matching, table_rows
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.dashboard.table_view import TableView


def make_board(gpus: list[GpuReading]) -> Board:
    """A board of these GPUs; pid 2 runs a job of 20 GiB."""
    watchlist = make_watchlist(make_run("tune", 2), device=20)
    return watchlist.update(make_snapshot(gpus))


def pids(table: ProcessTable) -> list[str]:
    return [row.cells["PID"].text for row in table.rows]


@pytest.fixture
def three_processes() -> list[GpuProcess]:
    return [make_process(1, 10, user="ana"), make_process(2, 40, user="bob"), make_process(3, 20, user="cyd")]


async def test_a_cursor_that_was_never_moved_stays_at_the_top():
    app = TableApp()
    async with app.run_test(size=(120, 20)):
        table = app.query_one(ProcessTable)
        table.sort_key = "VRAM"
        table.show_board(make_board([make_gpu(0, [make_process(1, 10)])]), width=120)
        table.show_board(make_board([make_gpu(0, [make_process(1, 10), make_process(9, 50)])]), width=120)
        assert (table.cursor_row, table.selected.row.process.pid) == (0, 9)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/opt/env/bin/python3.11 -u -X dev /data/runs/7/train.py --lr 1", "python3.11 train.py --lr 1"),
        ("python -W ignore -m sglang.launch_server --model-path /m", "python -m sglang.launch_server --model-path /m"),
        ("python -uOO -c import time", "python -c import time"),
        ("/usr/bin/python", "python"),
        ("/srv/engine /data/model", "engine /data/model"),
        ("./train", "./train"),
    ],
)
def test_commands_are_shown_without_folders_and_python_options(command: str, shown: str) -> None:
    assert without_folder(command) == shown


async def test_keys_move_the_cursor_and_keep_it_in_sight():
    async with table_of(make_board([make_gpu(0, [make_process(pid, 1) for pid in range(1, 51)])])) as (table, pilot):
        table.focus()
        await pilot.pause()
        seen = []
        for key in ("down", "up", "up", "end", "up", "pageup", "home", "pagedown"):
            await pilot.press(key)
            await pilot.pause()
            line = table.cursor_row - table.scroll_offset.y + 1
            assert table.render_line(line).text.split()[0] == pids(table)[table.cursor_row]
            seen.append(table.cursor_row)
        last = table.row_count - 1
        assert seen == [1, 0, 0, last, last - 1, last - 19, 0, 18]


async def test_click_on_a_title_sorts_by_it(three_processes):
    async with table_of(make_board([make_gpu(0, three_processes)])) as (table, pilot):
        await pilot.pause()
        await pilot.click(ProcessTable, offset=(table.render_line(0).text.index("VRAM"), 0))
        assert table.sort_key == "VRAM"
        assert pids(table)[:3] == ["2", "3", "1"]
        await pilot.click(ProcessTable, offset=(table.render_line(0).text.index("USER"), 0))
        assert pids(table)[:3] == ["1", "2", "3"]


async def test_an_ended_process_leaves_the_table_and_a_reused_pid_is_another_row(three_processes):
    async with table_of(make_board([make_gpu(0, three_processes)])) as (table, _):
        reused = make_process(1, 10, start_time=1_500.0)
        table.show_board(make_board([make_gpu(0, [reused, *three_processes[1:]])]), width=120)
        keys = [row.key for row in table.rows]
        assert ("GPU-00000000", 1, 1_500.0) in keys
        assert ("GPU-00000000", 1, 1_000.0) not in keys


async def test_narrow_table_omits_columns_but_shows_the_processes(three_processes):
    async with table_of(make_board([make_gpu(0, three_processes)]), (40, 20)) as (table, _):
        assert [title.strip() for title in table.titles] == ["PID", "GPU", "VRAM GiB", "STATUS↓"]
        table.show_board(make_board([make_gpu(0, three_processes)]), width=120)
        assert len(table.titles) == 9


@pytest.mark.parametrize(
    ("words", "found"),
    [("ana", [1]), ("tune", [2]), ("gpu1", [4]), ("seed 3", [3]), ("ana bob", []), ("in budget", [2])],
)
def test_filter_searches_every_field(three_processes, words: str, found: list[int]):
    others = {"command": "./serve", "name": "serve", "user": "dee"}
    three_processes[1] = make_process(2, 20, user="bob", command="./x", name="x")
    three_processes[0] = make_process(1, 10, user="ana", command="./y", name="y")
    board = make_board([make_gpu(0, three_processes), make_gpu(1, [make_process(4, 3, **others)], used_bytes=3 * GIB)])
    rows = matching([row for row in table_rows(board) if row.row], words)
    assert sorted(row.row.process.pid for row in rows if row.row) == found


def test_sorting_puts_urgent_rows_first_and_unknown_values_last(three_processes):
    rows = table_rows(make_board([make_gpu(0, [*three_processes, make_process(7, None)])]))

    def order(by: Any) -> list[int | None]:
        return [row.row.process.pid if row.row else None for row in in_order(rows, by)]

    assert order("STATUS") == [2, 3, 1, 7, None]
    assert order("VRAM") == [2, 3, 1, 7, None]
    assert order("PID") == [1, 2, 3, 7, None]
    assert order("DIFF")[0] == 2
    assert order("USER") == [1, 7, 2, 3, None]


@pytest.mark.parametrize("width", [20, 40, 60, 78, 100, 118, 200])
def test_columns_fill_the_width_and_never_exceed_it(width: int):
    columns = columns_for(width)
    assert sum(column.width + 2 for column in columns) == width
    assert columns[0].name == "PID"


@pytest.mark.parametrize("status", list(STATUSES))
def test_every_status_fits_its_column(three_processes, status):
    board = make_board([make_gpu(0, three_processes)])
    row = next(row for row in board.processes if row.comparison)
    judged = replace(row, comparison=replace(row.comparison, status=status))
    shown = replace(board, gpus=(replace(board.gpus[0], rows=(judged,)),))
    width = next(column.width for column in columns_for(120) if column.name == "STATUS")
    assert len(table_rows(shown)[0].cells["STATUS"].text) <= width


def test_processes_are_named_as_what_they_are():
    commands = ("sglang::scheduler_TP0", "VLLM::EngineCore", "/usr/lib/xorg/Xorg", "python train.py")
    processes = [replace(make_process(pid, 1), command=command) for pid, command in enumerate(commands, 1)]
    texts = [row.cells["COMMAND"].text for row in table_rows(make_board([make_gpu(0, processes)]))]
    assert texts[:4] == [
        "SGLang server: sglang::scheduler_TP0",
        "tune, vLLM server: VLLM::EngineCore",
        "Xorg",
        "python train.py",
    ]


def with_figures(pid: int, sm: float | None, cpu: float | None, **changes: Any) -> GpuProcess:
    figures = ProcessFigures(sm_percent=sm, cpu_percent=cpu, rss_bytes=pid * GIB, threads=pid, **changes)
    return replace(make_process(pid, 10), figures=figures)


def board_of_ranks(gpus: list[GpuReading], **changes: Any) -> Board:
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
    single = texts(board_of_ranks(gpus))[2]
    assert [single[name] for name in ("SM %", "BW %", "CPU %", "RAM GiB", "THR")] == ["90", "…", "150", "2.0", "2"]
    run = texts(board_of_ranks(gpus), "runs")[2]
    assert [run[name] for name in ("SM %", "BW %", "CPU %", "RAM GiB", "THR")] == ["60", "…", "1150", "5.0", "5"]


def test_a_process_on_two_gpus_counts_once_and_unknown_ranks_are_marked():
    ended = Fault(field="cpu_percent", code="ENDED", message="this process has ended")
    both = with_figures(2, 80.0, 100.0)
    gpus = [make_gpu(0, [both]), make_gpu(1, [both]), make_gpu(2, [with_figures(3, None, None, faults=(ended,))])]
    run = texts(board_of_ranks(gpus), "runs")[2]
    assert (run["CPU %"], run["SM %"], run["THR"]) == ("≥100", "~80", "5")


def test_unknown_is_never_0():
    first = Fault(field="cpu_percent", code=FIRST_SAMPLE, message="needs two readings")
    refused = Fault(field="sm_percent", code="NOT_SUPPORTED", message="not reported")
    gpus = [make_gpu(0, [with_figures(5, None, None, faults=(first, refused)), make_process(6, 1)])]
    live = texts(board_of_ranks(gpus))
    assert (live[5]["CPU %"], live[5]["SM %"], live[6]["THR"]) == ("…", "n/a", "…")
    recorded = texts(board_of_ranks(gpus, source=Source(kind="recording")))
    assert (recorded[6]["THR"], recorded[5]["THR"]) == ("n/a", "5")


def test_rows_are_sorted_by_figures_with_unknown_ones_last():
    gpus = [make_gpu(0, [with_figures(5, 10.0, 300.0), make_process(6, 70), with_figures(7, 50.0, 200.0)])]
    rows = table_rows(board_of_ranks(gpus))
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
    app = VramtopApp(source, make_watchlist(estimate=no_job))
    async with on_first_board(app, size=(80, 24)):
        table = app.screen.query_one(ProcessTable)
        assert "BUDGET" not in table.columns  # no process has one, and there is little room
        assert {SORTED_BY[table.sort_by_next()] for _ in SORTED_BY} == set(table.columns) - {"COMMAND"}


async def test_figures_are_read_while_a_column_shows_them():
    demand, columns = CurrentDemand(), {"dashboard.columns": ("PID", "CPU %", "COMMAND")}
    options = AppOptions(interval=0.05, demand=demand, settings=columns)
    source = ScriptedSource([make_snapshot([make_gpu(0, [make_process(100, 1)])])])
    app = VramtopApp(source, make_watchlist(), options)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, lambda: demand.value.process_figures == {"cpu_percent"})
        app.screen.table.show_columns(("PID", "COMMAND"))
        await until_shown(pilot, lambda: not demand.value.process_figures)


def test_where_a_process_runs_is_a_column_to_choose():
    job = "Slurm job 4711 step 0 (sft)"
    ranks = [replace(make_process(pid, 10), runs_in=job) for pid in (2, 3)]
    gpus = [make_gpu(0, [ranks[0]]), make_gpu(1, [ranks[1], make_process(9, 1)])]
    single = texts(board_of_ranks(gpus))
    assert (single[2]["RUNS IN"], single[9]["RUNS IN"]) == (job, "")
    assert texts(board_of_ranks(gpus), "runs")[2]["RUNS IN"] == job
    other = [gpus[0], make_gpu(1, [replace(ranks[1], runs_in="pod research/sft-1")])]
    assert texts(board_of_ranks(other), "runs")[2]["RUNS IN"] == f"{job} …"
    assert "RUNS IN" not in DEFAULT_COLUMNS
