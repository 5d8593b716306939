"""Which conditions hold on a board, what they say, and what cannot be told."""

from collections.abc import Callable
from typing import Any

import pytest
from builders import make_budget, make_gpu, make_process, make_run, make_snapshot

from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.alerts.conditions import Condition, Feed, find_conditions
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.faults import NO_ANSWER, NO_DRIVER, Fault

GIB = 2**30
MODEL = ModelSpec(id="meta-llama/Llama-3.1-8B")


@pytest.fixture
def watchlist() -> Watchlist:
    """Budgets of 40 GiB, from 30 to 50; a large one of 90, from 80."""

    def budget(job: Job) -> Any:
        size = 90 if job.label == "large" else 40
        return make_budget(job, device=size, low=size - 10, high=size + 10)

    return Watchlist(budget, is_running=lambda _: False, host_memory=lambda _: None)


def found(board: Board | None, **changes: Any) -> dict[str, list[Condition]]:
    conditions = find_conditions(Feed(**{"board": board, "age_seconds": 0.5, "interval": 1.0} | changes))
    by_rule: dict[str, list[Condition]] = {}
    for condition in conditions.present:
        by_rule.setdefault(condition.rule.name, []).append(condition)
    return by_rule


def test_ranks_over_their_budget_are_one_alert_about_the_worst(watchlist: Watchlist) -> None:
    watchlist.add_run(make_run(Job(name="sft\x1b[31m;rm", model=MODEL), 10, 11))
    gpus = [
        make_gpu(0, [make_process(10, 52, user="ann")]),
        make_gpu(1, [make_process(11, 55, user="ann")]),
        make_gpu(2, [make_process(12, 70, user="bo")]),
    ]
    (over,) = found(watchlist.update(make_snapshot(gpus)))["VramtopJobOverBudget"]
    words = "sft;rm of ann (process 11) holds up to 15.0 GiB more than predicted on GPU 0, 1"
    assert over.sentence == words
    assert over.gpus == ("1", "0")


def test_growth_is_told_with_the_time_until_the_gpu_is_full(watchlist: Watchlist) -> None:
    watchlist.add_run(make_run(Job(name="leaks", model=MODEL), 10))
    board = None
    for second in range(0, 250, 10):
        gpu = make_gpu(0, [make_process(10, 32 + second * 0.02)])
        board = watchlist.update(make_snapshot([gpu], time=2_000.0 + second))
    assert board is not None
    (growing,) = found(board)["VramtopJobGrowing"]
    assert growing.full_seconds == pytest.approx((79.5 - 1 - 36.8) / 0.02, rel=0.05)
    assert growing.sentence.endswith("grows and fills GPU 0 in about 34 min")
    assert not find_conditions(Feed(board=board, age_seconds=0.0, interval=1.0)).unknown
    slow = replace(board.gpus[0].rows[0].gpu, free_bytes=1000 * GIB)
    later = replace(board.gpus[0], rows=(replace(board.gpus[0].rows[0], gpu=slow),))
    assert "VramtopJobGrowing" not in found(replace(board, gpus=(later,)))


def test_memory_of_no_process(watchlist: Watchlist) -> None:
    hidden = make_gpu(1, [make_process(10, 3)], used_bytes=8 * GIB)
    here = found(watchlist.update(make_snapshot([make_gpu(0), hidden])))
    (unattributed,) = here["VramtopUnattributedMemory"]
    assert unattributed.sentence == "5.0 GiB of GPU 1 belong to no visible process"
    assert set(here) == {"VramtopUnattributedMemory"}


@pytest.mark.parametrize(
    ("fault", "unread", "is_lost"),
    [
        (Fault(field=None, code="GPU_IS_LOST", message="the GPU is lost"), True, True),
        (Fault(field=None, code=NO_ANSWER, message="has not answered"), False, True),
        (Fault(field=None, code="ASLEEP", message="asleep"), True, False),
        (Fault(field="power_w", code="NOT_SUPPORTED", message="no power"), True, False),
        (Fault(field=None, code="UNCORRECTED", message="an error, though it is read"), False, False),
    ],
)
def test_a_lost_gpu_is_one_that_cannot_be_read(watchlist: Watchlist, fault: Fault, unread: bool, is_lost: bool) -> None:
    gpu = make_gpu(4, faults=(fault,))
    gpu = replace(gpu, used_bytes=None, processes=None) if unread else gpu
    here = found(watchlist.update(make_snapshot([gpu])))
    lost = here.get("VramtopGpuLost", [])
    assert [each.sentence for each in lost] == [f"GPU 4 cannot be read: {fault.message}"] * is_lost


def test_without_recent_readings_nothing_else_is_told(watchlist: Watchlist) -> None:
    board = watchlist.update(make_snapshot([make_gpu(0, used_bytes=9 * GIB)]))
    assert set(found(board)) == {"VramtopUnattributedMemory"}
    no_driver = make_snapshot([], faults=(Fault(field=None, code=NO_DRIVER, message="the driver is gone"),))
    for late in (
        found(board, age_seconds=11.0),
        found(None, age_seconds=11.0),
        found(board, failure="the driver hangs"),
        found(watchlist.update(no_driver)),
    ):
        assert set(late) == {"VramtopSamplerStale"}
    assert found(None, age_seconds=2.0) == {}
    assert set(found(board, age_seconds=11.0, interval=5.0)) == {"VramtopUnattributedMemory"}


@pytest.fixture
def over(watchlist: Watchlist) -> Callable[..., Any]:
    """Conditions of a machine with a run over its budget, or with a GPU that hangs."""
    watchlist.add_run(make_run(Job(name="sft", model=MODEL), 10))
    hangs = Fault(field=None, code=NO_ANSWER, message="has not answered")

    def conditions(*, hanging: bool = False, gib: float = 60) -> Any:
        gpu = make_gpu(0, [make_process(10, gib)], faults=(hangs,) if hanging else ())
        board = watchlist.update(make_snapshot([gpu]))
        return find_conditions(Feed(board=board, age_seconds=0.0, interval=1.0))

    return conditions


def test_what_hangs_neither_raises_nor_ends_an_alert(over: Callable[..., Any]) -> None:
    (before,) = over().present
    hanging = over(hanging=True)
    assert [each.rule.name for each in hanging.present] == ["VramtopGpuLost"]
    assert hanging.is_unknown(before)
    assert not over(gib=35).is_unknown(before)


def test_a_run_over_its_budget_that_begins_to_grow_is_not_told_to_be_within_it(watchlist: Watchlist) -> None:
    watchlist.add_run(make_run(Job(name="leaks", model=MODEL), 10))
    seen = []
    for second in range(0, 250, 10):
        gpu = make_gpu(0, [make_process(10, 52 + second * 0.02)])
        board = watchlist.update(make_snapshot([gpu], time=2_000.0 + second))
        seen.append(find_conditions(Feed(board=board, age_seconds=0.0, interval=1.0)))
    (over,) = seen[0].present
    assert [each.rule.name for each in seen[-1].present] == ["VramtopJobGrowing"]
    assert seen[-1].is_unknown(over)
