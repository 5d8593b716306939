"""The tree view: processes below those that have started them."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from screen_host import on_first_board, screen_text
from waiting import until_shown

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.inspect.ancestry import Ancestor, AncestryReader
from vramtop.monitor.host.process_directory import ProcessDirectory
from vramtop.monitor.snapshot.snapshot import Source
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.dashboard.process_rows import unattributed_rows
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.dashboard.tree_rows import tree_rows

ANCESTORS = {
    50: Ancestor(pid=50, name="torchrun", command="/opt/bin/torchrun train.py", user="ana", parent=40),
    40: Ancestor(pid=40, name="bash", command="bash run.sh", user="ana", parent=30),
}


def make_board(*gpus: list[Any]) -> Board:
    """Make a board with these processes on one GPU after another."""
    watchlist = Watchlist(estimate=lambda job: pytest.fail("no job is known"))
    return watchlist.update(make_snapshot([make_gpu(at, each) for at, each in enumerate(gpus)]))


def lines(board: Board, ancestors: Any = ANCESTORS, words: str = "", by: Any = "VRAM") -> list[str]:
    """Pid, lines of the tree and command of each row, without options."""
    rows = tree_rows(board, [], ancestors, words=words, by=by)
    return [f"{row.cells['PID'].text} {row.cells['COMMAND'].text.partition(' --')[0]}" for row in rows]


def test_ranks_are_below_their_launcher_and_workers_below_their_rank():
    board = make_board(
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
    launcher = tree_rows(make_board([make_process(1, 20, parent=50)]), [], ANCESTORS, words="", by="GPU")[1]
    assert {cell.tone for cell in launcher.cells.values()} == {"muted"}
    assert {name for name, cell in launcher.cells.items() if cell.text} == {"PID", "USER", "COMMAND"}
    assert launcher.process_keys == ((1, 1_000.0),)  # a signal to a launcher reaches what it has started


def test_each_process_is_one_row_even_on_several_gpus():
    board = make_board([make_process(1, 20)], [make_process(1, 10)])
    (row,) = tree_rows(board, [], {}, words="", by="GPU")
    assert (row.cells["PID"].text, row.cells["GPU"].text, row.cells["VRAM GiB"].text) == ("1", "0,1", "30.0")


def test_until_ancestors_are_read_the_parent_has_the_name_that_the_reading_knows():
    board = make_board([make_process(1, 20, parent=50, parent_name="torchrun")])
    assert lines(board, {}) == ["50 torchrun", "1 └ python train.py"]
    assert lines(make_board([make_process(1, 20, parent=50, parent_name="systemd")]), {}) == ["1 python train.py"]


def test_a_filter_keeps_what_matches_with_everything_above_it():
    board = make_board(
        [make_process(1, 20, parent=50), make_process(2, 20, parent=50, command="python eval.py")],
        [make_process(9, 30)],
    )
    assert lines(board, words="eval") == ["40 bash run.sh", "50 └ torchrun train.py", "2   └ python eval.py"]
    assert len(lines(board, words="torchrun")) == 4
    assert lines(board, words="nothing") == []


def test_processes_that_name_each_other_as_parents_are_shown_once_each():
    board = make_board([make_process(1, 20, parent=2), make_process(2, 20, parent=1)])
    assert sorted(line.split()[0] for line in lines(board)) == ["1", "2"]
    loop = {50: replace(ANCESTORS[50], parent=40), 40: replace(ANCESTORS[40], parent=50)}
    assert sorted(line.split()[0] for line in lines(make_board([make_process(1, 20, parent=50)]), loop)) == [
        "1", "50",
    ]  # fmt: skip


def test_unattributed_memory_has_its_row():
    board = make_board([make_process(1, 20)])
    *_, rest = tree_rows(board, unattributed_rows(board), {}, words="", by="GPU")
    assert rest.rest_bytes == GIB


@pytest.fixture
def sleeper(start_python):
    """A real process below this one."""
    return start_python("import time; time.sleep(60)")


@pytest.fixture
def open_app(sleeper) -> Callable[..., VramtopApp]:
    """Return a function that makes an app with that process on a GPU."""

    def make(**changes: Any) -> VramtopApp:
        facts = ProcessDirectory().describe(sleeper.pid)
        row = make_process(
            sleeper.pid, start_time=facts.start_time, parent=facts.parent, command="sleeper", user=facts.user
        )
        watchlist = Watchlist(estimate=lambda job: pytest.fail("no job is known"))
        snapshot = make_snapshot([make_gpu(0, [row])], **changes)
        return VramtopApp(ScriptedSource([snapshot]), watchlist, AppOptions(interval=0.25))

    return make


async def test_ancestors_are_read_only_while_the_tree_is_shown(open_app, monkeypatch):
    asked: list[set[int]] = []
    read = AncestryReader.read
    monkeypatch.setattr(
        AncestryReader, "read", lambda self, parents, on_gpu: asked.append(parents) or read(self, parents, on_gpu)
    )
    app = open_app(source=Source(kind="nvml"))
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


async def test_processes_of_a_recording_are_not_looked_up_on_this_machine(open_app, monkeypatch):
    monkeypatch.setattr(AncestryReader, "read", lambda *_: pytest.fail("read"))
    app = open_app(source=Source(kind="recording", path="a.jsonl"))
    async with on_first_board(app) as pilot:
        await pilot.press("v", "v")
        await pilot.pause()
        assert app.screen.query_one(ProcessTable).view == "tree"
        assert "sleeper" in screen_text(app)
