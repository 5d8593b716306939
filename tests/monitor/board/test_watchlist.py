import re
from collections.abc import Callable, Iterable

import pytest
from builders import (
    make_board,
    make_budget,
    make_device,
    make_gpu,
    make_process,
    make_run,
    make_snapshot,
    make_watchlist,
)

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Inference, Job, ModelSpec, Parallel, Target, Training
from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.process_groups import group_processes
from vramtop.monitor.snapshot.memory_history import MemoryHistory
from vramtop.monitor.snapshot.snapshot import Snapshot, WatchedJob

JOB = Job(name="sft", model=ModelSpec(id="gpt2"))
OTHER = Job(name="other", model=ModelSpec(id="gpt2"))


@pytest.fixture
def machine() -> Snapshot:
    """GPU 0 with a job of 30 GiB and an unknown process, GPU 1 idle."""
    return make_snapshot([make_gpu(0, [make_process(1, 30), make_process(2, 5)]), make_gpu(1)])


def test_a_pid_that_was_reused_is_another_process(machine: Snapshot) -> None:
    watchlist = make_watchlist(WatchedJob(job=JOB, pids=((1, 555.0),)))
    assert watchlist.update(machine).processes[0].job is None


def test_memory_that_running_jobs_will_still_take_is_unavailable_to_pending_jobs(machine: Snapshot) -> None:
    watchlist = make_watchlist(pending=[OTHER])
    alone = watchlist.update(machine).pending[0]
    assert [gpu.device.committed_bytes for gpu in alone.fit.gpus] == [0, 0]
    watchlist.add_run(make_run(JOB, 1))
    beside = watchlist.update(machine).pending[0]
    assert beside.fit is not None
    expected = make_budget().steady_device_bytes - 30 * GIB
    assert [gpu.device.committed_bytes for gpu in beside.fit.gpus] == [expected, 0]


def test_pending_jobs_are_placed_one_after_the_other(machine: Snapshot) -> None:
    watchlist = make_watchlist(pending=["first", "second", "third"])
    verdicts = [row.fit.verdict for row in watchlist.update(machine).pending if row.fit]
    assert verdicts == ["fits", "fits", "unknown"]  # on GPU 1, then on GPU 0; the third by its lower bound only
    watchlist.add_pending(watchlist.pending()[0])
    assert [job.name for job in watchlist.pending()] == ["first", "second", "third"]
    watchlist.remove_pending(watchlist.pending()[0])
    assert [job.name for job in watchlist.pending()] == ["second", "third"]


def test_a_job_without_an_estimate_states_the_reason_and_is_estimated_once(machine: Snapshot) -> None:
    asked: list[Job] = []

    def refuse(job: Job) -> Budget:
        asked.append(job)
        raise InputError("no such model")

    watchlist = make_watchlist(make_run(JOB, 1), pending=[OTHER], estimate=refuse)
    for _ in range(3):
        board = watchlist.update(machine)
    assert board.pending[0].problem == board.processes[0].problem == "no such model"
    assert len(asked) == 2


def test_a_better_budget_replaces_the_quick_one(machine: Snapshot) -> None:
    watchlist = make_watchlist(make_run(JOB, 1))
    watchlist.update(machine)
    watchlist.set_budget(make_budget(JOB, device=20))
    budget = watchlist.update(machine).processes[0].budget
    assert budget.peak.device_bytes < 25 * GIB


def test_unused_budgets_are_discarded_and_those_in_use_are_kept(machine: Snapshot) -> None:
    asked: list[str] = []

    def estimate(job: Job) -> Budget:
        asked.append(job.label)
        return make_budget(job)

    watchlist = make_watchlist(make_run(JOB, 1), pending=[OTHER], estimate=estimate)
    for number in [*range(200), 0]:
        watchlist.add_run(make_run(f"job {number}", 2))
        watchlist.update(replace(machine, time=machine.time + number))
        watchlist.dismiss_runs([(2, 1_000.0)])
    assert (asked.count("sft"), asked.count("other"), asked.count("job 199"), asked.count("job 0")) == (1, 1, 1, 2)
    assert len(watchlist._budgets._budgets) == 64


def test_jobs_of_a_recording_are_shown_with_the_users_own(machine: Snapshot) -> None:
    recorded = make_snapshot(machine.gpus, watched=(make_run(JOB, 1),), pending=(OTHER,))
    watchlist = make_watchlist(pending=[OTHER])
    board = watchlist.update(recorded)
    assert board.processes[0].job == JOB
    assert [row.job for row in board.pending] == [OTHER]
    assert watchlist.update(machine).processes[0].job is None


def test_the_peak_from_before_the_oldest_reading_still_counts(machine: Snapshot) -> None:
    watchlist = make_watchlist(make_run(JOB, 1), history=MemoryHistory(capacity=2))
    gpu, process = next((gpu, process) for gpu, process in machine.processes() if process.pid == 1)
    for second, held in enumerate((40, 10, 10, 10)):
        row = replace(gpu, processes=(replace(process, used_bytes=held * GIB),))
        board = watchlist.update(replace(machine, time=machine.time + second, gpus=(row,)))
    comparison = board.processes[0].comparison
    assert comparison.peak_usage.size_bytes == 40 * GIB


def of_two_stages(job: Job) -> Budget:
    needs = [RankPeak(device_bytes=n * GIB, low_bytes=(n - 2) * GIB, high_bytes=(n + 2) * GIB) for n in (40, 20)]
    return replace(make_budget(job), stages=tuple(needs))


def test_each_pipeline_stage_is_compared_with_its_own_need() -> None:
    job = Job(name="stages", model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=2))
    watchlist = make_watchlist(make_run(job, 1, 2), estimate=of_two_stages)
    snapshot = make_snapshot([make_gpu(0, [make_process(2, 20)]), make_gpu(1, [make_process(1, 40)])])
    rows = {row.process.pid: row for row in watchlist.update(snapshot).processes}
    assert {pid: row.comparison and row.comparison.status for pid, row in rows.items()} == dict.fromkeys(
        (1, 2), "on_budget"
    )
    assert rows[2].budget.steady_device_bytes == 20 * GIB
    again = {row.process.pid: row for row in watchlist.update(replace(snapshot, time=2_001.0)).processes}
    assert again[2].budget is rows[2].budget
    watchlist.add_run(make_run(job, 2))  # the others are on another machine: which stage is this?
    alone = next(row for row in watchlist.update(replace(snapshot, time=2_002.0)).processes if row.job)
    assert alone.budget.steady_device_bytes == make_budget().steady_device_bytes


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(device_map="auto", pipeline=2)])
def test_what_one_process_holds_on_each_gpu_is_compared_with_its_need_there(parallel: Parallel) -> None:
    job = Job(name="parts", model=ModelSpec(id="gpt2"), parallel=parallel)
    gpus = [make_gpu(0, [make_process(1, 40)]), make_gpu(1, [make_process(3, 7)]), make_gpu(2, [make_process(1, 20)])]
    board = make_board(gpus, make_run(job, 1), estimate=of_two_stages)
    found = {row.gpu.index: row for row in board.processes if row.job}
    assert {at: row.budget and row.budget.steady_device_bytes // GIB for at, row in found.items()} == {0: 40, 2: 20}
    assert {row.comparison and row.comparison.status for row in found.values()} == {"on_budget"}
    (group,) = [each for each in group_processes(board) if each.run]
    assert group.ranks_elsewhere == 0


def test_a_server_is_compared_with_the_share_of_its_own_gpu() -> None:
    inference = Inference(engine="vllm", gpu_memory_utilization=0.5)
    training = Training(mode="inference", precision="bf16", sequence_length=1024)
    job = Job(model=ModelSpec(id="gpt2"), training=training, inference=inference)
    small = replace(make_gpu(1, [make_process(2, 12)]), total_bytes=24 * GIB)
    watchlist = make_watchlist(make_run(job, 1, 2), estimate=estimate)
    board = watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 70)]), small]))
    large_row, small_row = board.processes
    assert (large_row.comparison.status, small_row.comparison.status) == ("over", "on_budget")
    assert small_row.budget.peak.device_bytes == pytest.approx(12 * GIB, abs=GIB)
    assert board.runs[0].budget is large_row.budget
    again = watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 70)]), small]))
    assert again.processes[0].budget is large_row.budget  # phases are tracked by budget


def test_a_pending_job_is_judged_on_the_gpus_that_it_chooses(machine: Snapshot) -> None:
    chosen = machine.gpus[0].uuid  # the other one has more room
    jobs = [Job(model=ModelSpec(id="gpt2"), target=Target(devices=[uuid])) for uuid in (chosen, "GPU-gone")]
    row, gone = make_watchlist(pending=jobs).update(machine).pending
    assert [gpu.device.uuid for gpu in row.fit.gpus] == [chosen]
    assert gone.fit.verdict == "does_not_fit"


Play = Callable[..., list[Board]]


@pytest.fixture
def running() -> set[tuple[int, float | None]]:
    """The processes that still run."""
    return set()


@pytest.fixture
def play(running: set[tuple[int, float | None]]) -> Play:
    """Show a watchlist one process of these sizes in GiB, a second apart; None: it is on no GPU."""
    watchlist = make_watchlist(is_running=running.__contains__)
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
    watchlist = make_watchlist()
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
    filled = make_device(0, 79, growth="sft grows, GPU 0 full in about 10 min")
    found = check_fit(make_budget(), [filled, make_device(1, 60)])
    assert (found.verdict, found.placement) == ("fits", (1,))
    alone = check_fit(make_budget(), [filled, make_device(1, 30)])
    assert (alone.verdict, alone.placement) == ("tight", (0,))
    assert alone.sentence.endswith("; sft grows, GPU 0 full in about 10 min")
