from typing import Any

import pytest
from builders import make_gpu, make_process, make_run, make_snapshot, make_watchlist
from screen_host import TableApp, table_of

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.board import Board
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading
from vramtop.tui.draw.palette import STATUSES
from vramtop.tui.screens.dashboard.process_cells import without_folder
from vramtop.tui.screens.dashboard.process_columns import columns_for
from vramtop.tui.screens.dashboard.process_rows import in_order, matching, table_rows
from vramtop.tui.screens.dashboard.process_table import ProcessTable


def make_board(gpus: list[GpuReading]) -> Board:
    """A board of these GPUs; pid 2 runs a job of 20 GiB."""
    watchlist = make_watchlist(make_run("tune", 2), device=20)
    return watchlist.update(make_snapshot(gpus))


def pids(table: ProcessTable) -> list[str]:
    return [row.cells["PID"].text for row in table.rows]


@pytest.fixture
def three_processes() -> list[GpuProcess]:
    return [make_process(1, 10, user="ana"), make_process(2, 40, user="bob"), make_process(3, 20, user="cyd")]


async def test_update_keeps_the_cursor_on_its_process(three_processes):
    app = TableApp()
    async with app.run_test(size=(120, 20)):
        table = app.query_one(ProcessTable)
        table.sort_key = "VRAM"
        table.show_board(make_board([make_gpu(0, three_processes)]), width=120)
        assert pids(table)[:3] == ["2", "3", "1"]
        table.move_cursor(row=2)
        three_processes[0] = make_process(1, 50, user="ana")
        table.show_board(make_board([make_gpu(0, [*three_processes, make_process(9, 5)])]), width=120)
        assert pids(table)[:4] == ["1", "2", "3", "9"]
        assert table.selected.row.process.pid == 1


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


async def test_filter_and_sort_follow_the_typed_text(three_processes):
    async with table_of(make_board([make_gpu(0, three_processes)])) as (table, _):
        table.filter_by("bob")
        assert pids(table) == ["2"]
        table.filter_by("")
        assert table.row_count == 4
        assert table.sort_by_next() == "VRAM"
        assert "VRAM↓" in table.render_line(0).text


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
