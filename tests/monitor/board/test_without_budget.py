import re
from collections.abc import Callable, Iterable

import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.watchlist import Watchlist

Play = Callable[..., list[Board]]


@pytest.fixture
def running() -> set[tuple[int, float | None]]:
    """The processes that still run."""
    return set()


@pytest.fixture
def play(running: set[tuple[int, float | None]]) -> Play:
    """Show a watchlist one process of these sizes in GiB, a second apart; None: it is on no GPU."""
    watchlist = Watchlist(make_budget, is_running=running.__contains__)
    now = [2_000.0]

    def run(sizes: Iterable[float | None], **changes: object) -> list[Board]:
        boards = []
        for size in sizes:
            processes = [] if size is None else [make_process(1, size, **changes)]
            boards.append(watchlist.update(make_snapshot([make_gpu(0, processes)], time=now[0])))
            now[0] += 1.0
        return boards

    run.watchlist = watchlist  # type: ignore[attr-defined]
    return run


def only(board: Board) -> ProcessRow:
    (row,) = board.processes
    return row


def test_a_slow_leak_of_an_unknown_job_is_told_after_two_minutes(play: Play) -> None:
    boards = play(20 + 0.02 * second for second in range(150))
    found = [only(board).comparison is not None for board in boards]
    assert found.index(True) == 120
    assert all(found[120:])


@pytest.mark.parametrize(
    "sizes",
    [
        [min(2.0 * second, 30) for second in range(200)],
        [30 + second % 7 for second in range(200)],
        [2.0 * second for second in range(16)],
    ],
    ids=["loads, then steady", "goes up and down", "loads, and much is left"],
)
def test_loading_and_working_is_no_growth(play: Play, sizes: list[float]) -> None:
    assert not any(only(board).comparison for board in play(sizes))


def test_a_browser_that_grows_is_no_news(play: Play) -> None:
    boards = play((20 + 0.02 * second for second in range(150)), name="firefox", command="/usr/lib/firefox/firefox")
    assert not any(only(board).comparison for board in boards)


def test_a_process_that_ended_stays_for_a_minute_with_its_last_figure(play: Play) -> None:
    boards = play([20.0, 30.0, 25.0, *[None] * 61])
    shown = [board.ended_processes for board in boards]
    assert [len(rows) for rows in shown] == [0, 0, 0, *[1] * 60, 0]
    (row,) = shown[3]
    assert (row.ended_at, row.process.used_bytes) == (2_003.0, 25 * 2**30)
    assert (row.comparison.status, row.comparison.observed_bytes) == ("ended", None)
    assert row.comparison.sentence == "has ended; held 25.0 GiB at the last reading, at most 30.0 GiB"


def test_a_leak_that_ends_at_a_full_gpu_has_probably_run_out_of_memory(play, running) -> None:
    leak = [20.0 + 3 * second for second in range(19)]  # 74 GiB: less is free than it takes in two seconds
    (row,) = play([*leak, 77.0, None])[-1].ended_processes
    assert row.comparison.status == "out_of_memory"
    assert row.comparison.sentence.startswith("ended while it grew, and its GPU was nearly full then (1.5 GiB free)")
    running.add((1, 1_000.0))
    (row,) = play([*leak, 77.0, None])[-1].ended_processes
    assert row.comparison.sentence.startswith("no longer holds memory on GPU 0, but is still running; held 77.0 GiB")


def test_an_ended_process_can_be_dismissed_and_may_come_back(play: Play) -> None:
    assert len(play([20.0, None])[-1].ended_processes) == 1
    assert play([20.0])[-1].ended_processes == ()
    assert len(play([None])[-1].ended_processes) == 1
    play.watchlist.dismiss_runs([(1, 1_000.0)])  # type: ignore[attr-defined]
    assert play([None])[-1].ended_processes == ()


def test_a_recording_that_is_wound_on_ends_nothing() -> None:
    watchlist = Watchlist(make_budget)
    watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 20)])], time=2_000.0))
    assert watchlist.update(make_snapshot([make_gpu(0)], time=9_000.0)).ended_processes == ()


def test_a_process_whose_gpu_cannot_be_read_has_not_ended(play: Play) -> None:
    play([20.0])
    unread = make_snapshot([replace(make_gpu(0), processes=None)], time=2_001.0)
    assert play.watchlist.update(unread).ended_processes == ()  # type: ignore[attr-defined]


def test_memory_that_a_growing_process_will_take_is_not_free_for_a_pending_job(play) -> None:
    watchlist = play.watchlist  # type: ignore[attr-defined]
    watchlist.add_pending(Job(name="next", model=ModelSpec(id="gpt2")))  # 40 GiB, at most 41
    *_, calm = play([10.0] * 20)
    assert [(row.fit.verdict, row.fits) for row in calm.pending] == [("fits", True)]
    *_, growing = play([10.0 + second / 5 for second in range(1, 121)])  # GiB
    (row,) = growing.pending
    assert (row.fit.verdict, row.fits) == ("tight", False)
    assert re.search(r"fits on GPU 0 now; process 1 grows, GPU 0 full in about [\d.]+ min$", row.fit.sentence)


def test_a_pending_job_is_placed_where_nothing_grows() -> None:
    free = {"uuid": None, "name": "card", "total_bytes": 80 * GIB}
    filled = DeviceCapacity(index=0, free_bytes=79 * GIB, growth="sft grows, GPU 0 full in about 10 min", **free)
    other = DeviceCapacity(index=1, free_bytes=60 * GIB, **free)
    found = check_fit(make_budget(), [filled, other])
    assert (found.verdict, found.placement) == ("fits", (1,))
    alone = check_fit(make_budget(), [filled, replace(other, free_bytes=30 * GIB)])
    assert (alone.verdict, alone.placement) == ("tight", (0,))
    assert alone.sentence.endswith("; sft grows, GPU 0 full in about 10 min")
