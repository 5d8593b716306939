import pytest
from builders import make_gpu, make_process, make_snapshot, make_watchlist
from textual.app import App, ComposeResult

from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.board import ProcessRow
from vramtop.monitor.snapshot.snapshot import ProcessCounters, WatchedJob
from vramtop.tui.screens.attach.rank_table import RankPlacement, RankTable, rank_columns, rank_rows

JOB = Job(name="sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
KEYS = ((11, 1_000.0), (12, 1_000.0))
RANKS = {KEYS[0]: RankPlacement(0, "0"), KEYS[1]: RankPlacement(1, "1")}


@pytest.fixture
def rows_of():
    """Makes the rows of ranks that hold these GiB, each on a GPU of its own."""
    watchlist = make_watchlist(WatchedJob(job=JOB, pids=KEYS), device=40, is_running=lambda _: False)
    times = iter(range(2_000, 3_000))

    def make(*sizes: float | None, **changes) -> tuple[ProcessRow, ...]:
        gpus = [
            make_gpu(at, [make_process(pid=11 + at, used=size, **changes)] if size is not None else [])
            for at, size in enumerate(sizes)
        ]
        return watchlist.update(make_snapshot(gpus, time=float(next(times)))).runs[0].rows

    return make


def cells(rows, column: str) -> list[str]:
    return [row.cells[column].text for row in rank_rows(rows, RANKS)]


def test_each_rank_shows_its_memory_and_the_source_of_its_peak(rows_of):
    rows_of(41, 60)
    rows = rows_of(40, 61)
    assert cells(rows, "RANK") == ["0", "1"]
    assert cells(rows, "HOLDS") == ["40.0", "61.0"]
    assert cells(rows, "PEAK") == ["41.0", "61.0"]
    assert cells(rows, "KNOWN BY") == ["seen 1.0 s"] * 2
    assert cells(rows, "DIFF") == ["0.0", "+21.0"]
    assert cells(rows, "STATUS") == ["✓ within budget", "▲ OVER"]


def test_the_peak_of_the_driver_or_the_probe_is_preferred(rows_of):
    assert cells(rows_of(40, 41, peak_bytes=50 * 2**30), "KNOWN BY") == ["driver"] * 2
    told = ProcessCounters(
        time=2_000.0, reserved_bytes=30 * 2**30, reserved_peak_bytes=35 * 2**30, steps=1234, step_seconds=0.5
    )
    rows = rows_of(40, 41, counters=told)
    assert cells(rows, "KNOWN BY") == ["probe"] * 2
    assert cells(rows, "PEAK") == ["45.0", "46.0"]
    assert cells(rows, "STEP") == ["1,234"] * 2
    assert cells(rows, "S/STEP") == ["0.50"] * 2


def test_ranks_without_a_gpu_and_ended_ranks_are_listed(rows_of):
    assert cells(rows_of(40, None), "STATUS") == ["✓ within budget", "on no GPU yet"]
    assert cells(rows_of(40, None), "GPU") == ["0", "1"]
    rows_of(40, 40)
    rows = rows_of(40, None)
    assert cells(rows, "STATUS") == ["✓ within budget", "■ ended"]
    assert cells(rows, "HOLDS") == ["40.0", "-"]


@pytest.mark.parametrize("width", [1, 40, 80, 120, 200])
def test_columns_fit_the_width_and_the_most_important_are_kept(width):
    columns = rank_columns(width)
    assert sum(column.width + 2 for column in columns) <= max(width, 9)
    names = {column.name for column in columns}
    assert "PID" in names
    assert width < 80 or {"RANK", "GPU", "HOLDS", "PEAK", "DIFF", "STATUS"} <= names


class TableApp(App[None]):
    def compose(self) -> ComposeResult:
        yield RankTable()


async def test_the_cursor_follows_the_most_urgent_rank_until_the_user_moves_it(rows_of):
    app = TableApp()
    async with app.run_test(size=(120, 20)) as pilot:
        table = app.query_one(RankTable)

        def chosen(*sizes: float) -> int:
            table.show(rows_of(*sizes), RANKS, width=120)
            return table.process.process.pid

        assert chosen(40, 41) == 12  # holds more
        assert chosen(41, 40) == 12  # no reason to jump
        assert chosen(61, 40) == 11  # over
        await pilot.press("down")
        assert chosen(62, 40) == 12
        assert chosen(63, 64) == 12
