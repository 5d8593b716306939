import pytest
from textual.app import App
from textual.screen import Screen

from vramtop.estimator.job import Job, ModelSpec
from vramtop.monitor.board import Board
from vramtop.monitor.snapshot import WatchedJob
from vramtop.monitor.watch import Watchlist
from vramtop.tui.screens.process_detail import ProcessDetailScreen
from vramtop.tui.widgets.memory_graph import MemoryGraph

JOB = Job(name="llama-8b-sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
COMMAND = "python train.py " + " ".join(f"--flag_{number} {number}" for number in range(30))


class Host(App[None]):
    """Shows one screen, and can be asked to attach."""

    def __init__(self, screen: Screen[None]) -> None:
        super().__init__()
        self.shown = screen
        self.attached: list[int] = []

    async def on_mount(self) -> None:
        await self.push_screen(self.shown)

    def action_attach(self, pid: int) -> None:
        self.attached.append(pid)


@pytest.fixture
def watchlist(make_budget) -> Watchlist:
    return Watchlist(estimate=lambda job: make_budget(job, device=40))


@pytest.fixture
def boards(watchlist, make_snapshot, make_gpu, make_process) -> list[Board]:
    """A process that grows from 8 to 60 GiB in 14 seconds."""
    sizes = range(8, 64, 4)
    return [
        watchlist.update(make_snapshot([make_gpu(0, [make_process(used=size, command=COMMAND)])], time=2_000.0 + at))
        for at, size in enumerate(sizes)
    ]


def text_of(screen: Screen[None], selector: str) -> str:
    return str(screen.query_one(selector).render())


async def test_without_a_job_it_says_so_and_offers_to_attach(watchlist, boards):
    screen = ProcessDetailScreen(watchlist, boards[-1].processes[0])
    app = Host(screen)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        screen.show_board(boards[-1])
        facts = text_of(screen, "#facts")
        assert "pid 4711 · ana · GPU 0 H100 80GB HBM3" in facts
        assert COMMAND in facts
        assert "No job is known to run here" in text_of(screen, "#bars")
        await pilot.press("a")
        assert app.attached == [4711]


async def test_a_job_is_held_against_its_budget(watchlist, boards):
    watchlist.watch(WatchedJob(job=JOB, pids=((4711, 1_000.0),)))
    board = watchlist.update(boards[-1].snapshot)
    screen = ProcessDetailScreen(watchlist, board.processes[0])
    async with Host(screen).run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await pilot.pause()
        assert "job llama-8b-sft" in text_of(screen, "#facts")
        bars = text_of(screen, "#bars")
        assert "OVER" in bars
        assert "+20.0 GiB" in bars
        assert "most 60.0 (seen every 1.0 s)" in bars
        assert "weights" in text_of(screen, "#budget")
        graph = screen.query_one(MemoryGraph)
        rows = [graph.render_line(y).text for y in range(graph.size.height)]
        assert any("━" in row for row in rows)
        assert rows[0].startswith("80 ┤")


async def test_a_process_that_ends_keeps_its_last_figures(watchlist, boards, make_snapshot, make_gpu):
    screen = ProcessDetailScreen(watchlist, boards[-1].processes[0])
    async with Host(screen).run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        screen.show_board(boards[-1])
        screen.show_board(watchlist.update(make_snapshot([make_gpu(0)], time=2_020.0)))
        assert "no longer on GPU 0" in text_of(screen, "#facts")
        assert "60.0 of 80.0 GiB" in text_of(screen, "#bars")


async def test_unknown_memory_is_not_drawn_as_zero(watchlist, make_snapshot, make_gpu, make_process):
    process = make_process(used=None, command=None, start_time=None, user=None, note="no such process here")
    board = watchlist.update(make_snapshot([make_gpu(0, [process], total_bytes=None)]))
    screen = ProcessDetailScreen(watchlist, board.processes[0])
    async with Host(screen).run_test() as pilot:
        await pilot.pause()
        screen.show_board(board)
        assert "n/a of n/a" in text_of(screen, "#bars")
        assert "???" in text_of(screen, "#bars")
        assert "no such process here" in text_of(screen, "#facts")


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_bars_fill_the_width_and_no_more(watchlist, boards, size):
    screen = ProcessDetailScreen(watchlist, boards[-1].processes[0])
    async with Host(screen).run_test(size=size) as pilot:
        await pilot.pause()
        screen.show_board(boards[-1])
        await pilot.pause()
        line = text_of(screen, "#bars").splitlines()[0]
        assert size[0] - 20 < len(line) <= size[0]
