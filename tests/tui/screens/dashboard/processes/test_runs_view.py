"""The tables of runs and of the tree of processes: rows, folding, keys and what they leave on the screen."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from builders import (
    make_board,
    make_gpu,
    make_process,
    make_run,
    make_snapshot,
    make_watchlist,
    no_job,
)
from screen_host import app_of, on_first_board, screen_text, table_of
from waiting import until_shown

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Parallel
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.process_groups import ProcessGroup
from vramtop.monitor.host.process_directory import Ancestor, AncestryReader, ProcessDirectory
from vramtop.monitor.snapshot.snapshot import Source
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.screens.dashboard.process_columns import group_status
from vramtop.tui.screens.dashboard.process_rows import unattributed_rows
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.dashboard.table_view import tree_rows

RANKS = (11, 12, 13, 14)
SERVER = {"parent": 50, "parent_name": "serve", "command": "./serve --port 80", "name": "serve", "user": "bob"}


def gpus(used: Sequence[float] = (20.0, 20.1, 20.4, 20.0), single: float = 5) -> list[Any]:
    """Make four GPUs with a rank each, two workers of a server, and a single process."""
    ranks = [make_process(pid, size) for pid, size in zip(RANKS, used, strict=True)]
    workers = [make_process(pid, 2, **SERVER) for pid in (21, 22)]
    others = [[*workers[:1], make_process(31, single, command="./x", name="x")], workers[1:], [], []]
    return [make_gpu(at, [rank, *others[at]]) for at, rank in enumerate(ranks)]


def board_of(readings: list[Any], *, world: int = 4) -> Board:
    """Make a board on which the ranks run a job of 20 GiB each."""
    return make_board(readings, make_run(Job(name="tune", parallel=Parallel(data_replicate=world)), *RANKS), device=20)


def shown(table: ProcessTable) -> list[str]:
    """The texts of the first column, without the rows of unattributed memory."""
    return [row.cells["PID"].text for row in table.rows if row.rows]


async def test_a_run_is_one_row_with_its_sum_highest_rank_spread_and_budget_per_rank():
    async with table_of(board_of(gpus())) as (table, _):
        assert shown(table) == ["4 procs", "31", "2 procs"]
        cells = {name: cell.text for name, cell in table.rows[0].cells.items()}
        assert cells["GPU"] == "0-3"
        assert cells["VRAM GiB"] == "80.5"
        assert (cells["MAX"], cells["SPREAD"], cells["BUDGET"], cells["DIFF"]) == ("20.4", "0.4", "20.0", "+0.4")
        assert cells["COMMAND"] == "tune: python train.py --seed …"
        assert "▸ 4 procs" in table.render_line(1).text
        assert table.rows[0].cells["SPREAD"].tone == "muted"
        assert table.selected.process_row.process.pid == 13  # what other screens use of a folded run
        table.show_board(board_of(gpus(used=(20, 20, 29, 20)), world=8), width=120)
        cells = table.rows[0].cells
        assert (cells["SPREAD"].text, cells["SPREAD"].tone, cells["STATUS"].text) == ("9.0", "plain", "▲ OVER 1/4")
        assert cells["COMMAND"].text.startswith("tune (4 of 8 ranks here): python")


@pytest.mark.parametrize("width", [80, 120, 200])
async def test_highest_rank_spread_and_budget_of_a_run_fit_into_every_usual_width(width: int):
    async with table_of(board_of(gpus()), (width, 20)) as (table, _):
        titles = [title.strip() for title in table.titles]
        assert {"PID", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS↓", "COMMAND"} <= set(titles)
        assert table.render_line(1).cell_length == width
        assert table.max_scroll_x == 0


async def test_keys_unfold_and_fold_and_the_state_stays_over_boards():
    async with table_of(board_of(gpus())) as (table, pilot):
        table.focus()
        await pilot.press("right")
        assert shown(table) == ["4 procs", "11", "12", "13", "14", "31", "2 procs"]
        assert "├ rank 1: python train.py" in table.render_line(3).text
        assert "└ rank 3: python train.py" in table.render_line(5).text
        table.show_board(board_of(gpus(single=90)), width=120)
        assert shown(table) == ["4 procs", "11", "12", "13", "14", "31", "2 procs"]
        await pilot.press("down", "down", "left")
        assert table.cursor_row == 0
        await pilot.press("left")
        assert shown(table) == ["4 procs", "31", "2 procs"]


async def test_enter_unfolds_a_run_and_then_opens_it():
    async with table_of(board_of(gpus())) as (table, pilot):
        table.focus()
        await pilot.press("enter")
        await pilot.pause()
        assert (table.rows[0].fold, table.app.opened) == ("unfolded", [])
        await pilot.press("enter", "down", "down", "enter")
        await pilot.pause()
        assert table.app.opened == [13, 12]  # the rank that holds the most, then the one under the cursor


async def test_the_cursor_stays_on_its_row_when_rows_move_or_are_folded_away():
    async with table_of(board_of([])) as (table, pilot):
        table.sort_key = "VRAM"
        table.show_board(board_of(gpus()), width=120)
        table.move_cursor(row=1)
        assert table.selected.row.process.pid == 31
        table.show_board(board_of(gpus(single=90)), width=120)
        assert (table.cursor_row, table.selected.row.process.pid) == (0, 31)
        table.focus()
        await pilot.press("down", "right", "down")
        assert table.selected.row.process.pid == 13  # by memory
        table.show_view("processes")
        assert table.selected.row.process.pid == 13
        table.show_view("runs")
        assert table.selected.row.process.pid == 13
        table.show_view("processes")
        table.move_cursor(row=shown(table).index("22"))
        table.show_view("runs")  # there its run is folded
        assert table.selected.cells["PID"].text == "2 procs"


async def test_a_filter_that_some_processes_match_unfolds_their_run_to_them():
    async with table_of(board_of(gpus())) as (table, _):
        for words, found in (
            ("tune", ["4 procs"]),
            ("gpu2", ["4 procs", "13"]),
            ("tune gpu1", ["4 procs", "12"]),
            ("13", ["4 procs", "13"]),
            ("bob", ["2 procs"]),
            ("./x", ["31"]),
            ("gpu0", ["4 procs", "11", "31", "2 procs", "21"]),
            ("nothing", []),
        ):
            table.filter_by(words)
            assert shown(table) == found, words
            table.filter_by("")
            assert shown(table) == ["4 procs", "31", "2 procs"], words


async def test_groups_are_sorted_by_their_sums_and_worst_figures():
    async with table_of(board_of(gpus(single=3))) as (table, _):
        order = {}
        for _ in range(7):
            key = table.sort_by_next()
            order[key] = shown(table)
        assert order["VRAM"] == ["4 procs", "2 procs", "31"]
        assert order["PID"] == ["4 procs", "2 procs", "31"]
        assert order["GPU"] == ["4 procs", "2 procs", "31"]
        assert order["USER"] == ["4 procs", "31", "2 procs"]
        assert order["DIFF"][0] == order["STATUS"][0] == "4 procs"


async def test_what_little_of_each_gpu_no_process_accounts_for_is_one_row_and_much_has_a_row_of_its_own():
    def rest() -> list[tuple[str, str]]:
        return [(row.cells["GPU"].text, row.cells["VRAM GiB"].text) for row in table.rows if not row.rows]

    async with table_of(board_of([*gpus(), make_gpu(4, used_bytes=30 * GIB)])) as (table, pilot):
        assert rest() == [("4", "30.0"), ("0-3", "4.0")]
        table.focus()
        await pilot.press("end", "enter")
        assert rest() == [("4", "30.0"), ("0-3", "4.0"), *((str(at), "1.0") for at in range(4))]
        await pilot.press("left")
        table.filter_by("unattributed gpu2")
        assert rest() == [("0-3", "4.0"), ("2", "1.0")]


def open_app(**options: Any) -> VramtopApp:
    """Make an app with two workers of a server."""
    workers = [make_process(pid, 2, **SERVER) for pid in (21, 22)]
    snapshot = make_snapshot([make_gpu(at, [each]) for at, each in enumerate(workers)])
    return app_of([snapshot], make_watchlist(estimate=no_job), **options)


async def test_v_shows_the_next_view_which_is_kept_for_the_next_start():
    kept: list[tuple[str, str]] = []
    app = open_app(save_setting=lambda *setting: kept.append(setting))
    async with on_first_board(app) as pilot:
        table = app.screen.query_one(ProcessTable)
        assert table.view == "runs"
        await pilot.press("v")
        assert table.view == "processes"
        assert {"SM %", "CPU %", "USER"} <= set(table.columns)  # as in other monitors
        assert "BUDGET" not in table.columns[:4]
    assert kept[-1] == ("dashboard.view", "processes")
    app = open_app(settings=dict(kept))
    async with app.run_test(size=(120, 40)):
        assert app.screen.query_one(ProcessTable).view == "processes"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (("server", "server", "server"), "server"),
        (("job not read", "job not read", "server"), "job not rea…"),
        (("job not read", "reading…", "reading…"), "job not rea…"),
        (("reading…", "reading…"), "reading…"),
    ],
)
def test_a_group_without_a_budget_says_why_most_of_it_has_none(reasons, words):
    launched = SERVER | {"command": "python x.py"}
    board = board_of([make_gpu(0, [make_process(at, 1, **launched) for at in range(70, 70 + len(reasons))])])
    rows = tuple(replace(row, no_budget_reason=why) for row, why in zip(board.processes, reasons, strict=True))
    assert group_status(ProcessGroup(key=("a",), rows=rows)).text == words


async def test_a_process_on_several_gpus_is_one_row_with_its_pid():
    gpus = [make_gpu(at, [make_process(31, size)]) for at, size in enumerate((30, 20))]
    async with table_of(board_of(gpus, world=1)) as (table, _):
        (row,) = [row for row in table.rows if row.rows]
        assert [row.cells[name].text for name in ("PID", "GPU", "VRAM GiB", "MAX")] == ["31", "0,1", "50.0", "30.0"]
        table.action_unfold()
        assert "├ python train.py" in table.render_line(2).text


ANCESTORS = {
    50: Ancestor(pid=50, name="torchrun", command="/opt/bin/torchrun train.py", user="ana", parent=40),
    40: Ancestor(pid=40, name="bash", command="bash run.sh", user="ana", parent=30),
}


def unknown_board(*gpus: list[Any]) -> Board:
    """Make a board with these processes on one GPU after another."""
    return make_board([make_gpu(at, each) for at, each in enumerate(gpus)], estimate=no_job)


def lines(board: Board, ancestors: Any = ANCESTORS, words: str = "", by: Any = "VRAM") -> list[str]:
    """Pid, lines of the tree and command of each row, without options."""
    rows = tree_rows(board, [], ancestors, words=words, by=by)
    return [f"{row.cells['PID'].text} {row.cells['COMMAND'].text.partition(' --')[0]}" for row in rows]


def test_ranks_are_below_their_launcher_and_workers_below_their_rank():
    board = unknown_board(
        [make_process(1, 20, parent=50), make_process(9, 30, command="./serve")],
        [make_process(2, 21, parent=50), make_process(3, 1, parent=1)],
    )
    assert lines(board) == [
        "9 ./serve",
        "40 bash run.sh",
        "50 └ torchrun train.py",
        "2   ├ python train.py",
        "1   └ python train.py",
        "3     └ python train.py",
    ]


def test_an_ancestor_is_dim_and_says_nothing_about_memory():
    launcher = tree_rows(unknown_board([make_process(1, 20, parent=50)]), [], ANCESTORS, words="", by="GPU")[1]
    assert {cell.tone for cell in launcher.cells.values()} == {"muted"}
    assert {name for name, cell in launcher.cells.items() if cell.text} == {"PID", "USER", "COMMAND"}
    assert [row.process.key for row in launcher.rows] == [
        (1, 1_000.0)
    ]  # a signal to a launcher reaches what it has started


def test_each_process_is_one_row_even_on_several_gpus():
    board = unknown_board([make_process(1, 20)], [make_process(1, 10)])
    (row,) = tree_rows(board, [], {}, words="", by="GPU")
    assert (row.cells["PID"].text, row.cells["GPU"].text, row.cells["VRAM GiB"].text) == ("1", "0,1", "30.0")


def test_until_ancestors_are_read_the_parent_has_the_name_that_the_reading_knows():
    board = unknown_board([make_process(1, 20, parent=50, parent_name="torchrun")])
    assert lines(board, {}) == ["50 torchrun", "1 └ python train.py"]
    assert lines(unknown_board([make_process(1, 20, parent=50, parent_name="systemd")]), {}) == ["1 python train.py"]


def test_a_filter_keeps_what_matches_with_everything_above_it():
    board = unknown_board(
        [make_process(1, 20, parent=50), make_process(2, 20, parent=50, command="python eval.py")],
        [make_process(9, 30)],
    )
    assert lines(board, words="eval") == ["40 bash run.sh", "50 └ torchrun train.py", "2   └ python eval.py"]
    assert len(lines(board, words="torchrun")) == 4
    assert lines(board, words="nothing") == []


def test_processes_that_name_each_other_as_parents_are_shown_once_each():
    board = unknown_board([make_process(1, 20, parent=2), make_process(2, 20, parent=1)])
    assert sorted(line.split()[0] for line in lines(board)) == ["1", "2"]
    loop = {50: replace(ANCESTORS[50], parent=40), 40: replace(ANCESTORS[40], parent=50)}
    assert sorted(line.split()[0] for line in lines(unknown_board([make_process(1, 20, parent=50)]), loop)) == [
        "1", "50",
    ]  # fmt: skip


def test_unattributed_memory_has_its_row():
    board = unknown_board([make_process(1, 20)])
    *_, rest = tree_rows(board, unattributed_rows(board), {}, words="", by="GPU")
    assert rest.rest_bytes == GIB


@pytest.fixture
def sleeper(start_python):
    """A real process below this one."""
    return start_python("import time; time.sleep(60)")


@pytest.fixture
def open_tree(sleeper) -> Callable[..., VramtopApp]:
    """Return a function that makes an app with that process on a GPU."""

    def make(**changes: Any) -> VramtopApp:
        facts = ProcessDirectory().describe(sleeper.pid)
        row = make_process(
            sleeper.pid, start_time=facts.start_time, parent=facts.parent, command="sleeper", user=facts.user
        )
        return app_of([make_snapshot([make_gpu(0, [row])], **changes)], make_watchlist(estimate=no_job))

    return make


async def test_ancestors_are_read_only_while_the_tree_is_shown(open_tree, monkeypatch):
    asked: list[set[int]] = []
    read = AncestryReader.read
    monkeypatch.setattr(
        AncestryReader, "read", lambda self, parents, on_gpu: asked.append(parents) or read(self, parents, on_gpu)
    )
    app = open_tree(source=Source(kind="nvml"))
    async with on_first_board(app) as pilot:
        table = app.screen.query_one(ProcessTable)
        await pilot.pause()
        assert asked == []
        await pilot.press("v", "v")
        await until_shown(pilot, lambda: any(row.ancestor for row in table.rows))
        assert asked[0] == {os.getpid()}
        assert "└ sleeper" in screen_text(app)
        place = table.rows.index(next(row for row in table.rows if row.row))
        table.move_cursor(row=place - 1)
        await pilot.press("enter")
        await pilot.pause()
        assert "holds no GPU memory" in "".join(notice.message for notice in app._notifications)


async def test_processes_of_a_recording_are_not_looked_up_on_this_machine(open_tree, monkeypatch):
    monkeypatch.setattr(AncestryReader, "read", lambda *_: pytest.fail("read"))
    app = open_tree(source=Source(kind="recording", path="a.jsonl"))
    async with on_first_board(app) as pilot:
        await pilot.press("v", "v")
        await pilot.pause()
        assert app.screen.query_one(ProcessTable).view == "tree"
        assert "sleeper" in screen_text(app)
