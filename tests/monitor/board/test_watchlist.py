import msgspec
import pytest
from builders import make_budget, make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Inference, Job, ModelSpec, Parallel, Target, Training
from vramtop.monitor.board.process_groups import group_processes
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.memory_history import MemoryHistory
from vramtop.monitor.snapshot.snapshot import Snapshot, WatchedJob

JOB = Job(name="sft", model=ModelSpec(id="gpt2"))
OTHER = Job(name="other", model=ModelSpec(id="gpt2"))


def replace_name(job: Job, name: str) -> Job:
    return msgspec.structs.replace(job, name=name)


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
    watchlist = Watchlist(make_budget)
    for name in ("first", "second", "third"):
        watchlist.add_pending(Job(name=name, model=ModelSpec(id="gpt2")))
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

    watchlist = Watchlist(refuse)
    watchlist.add_pending(OTHER)
    watchlist.add_run(make_run(JOB, 1))
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

    watchlist = Watchlist(estimate)
    watchlist.add_run(make_run(JOB, 1))
    watchlist.add_pending(OTHER)
    for number in [*range(200), 0]:
        watchlist.add_run(make_run(replace_name(JOB, f"job {number}"), 2))
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


def test_each_pipeline_stage_is_compared_with_its_own_need() -> None:
    job = Job(name="stages", model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=2))
    needs = [RankPeak(device_bytes=n * GIB, low_bytes=(n - 2) * GIB, high_bytes=(n + 2) * GIB) for n in (40, 20)]
    watchlist = Watchlist(lambda job: replace(make_budget(job), stages=tuple(needs)))
    keys = ((1, 1_000.0), (2, 1_000.0))
    watchlist.add_run(WatchedJob(job=job, pids=keys))
    snapshot = make_snapshot([make_gpu(0, [make_process(2, 20)]), make_gpu(1, [make_process(1, 40)])])
    rows = {row.process.pid: row for row in watchlist.update(snapshot).processes}
    assert {pid: row.comparison and row.comparison.status for pid, row in rows.items()} == dict.fromkeys(
        (1, 2), "on_budget"
    )
    assert rows[2].budget.steady_device_bytes == 20 * GIB
    again = {row.process.pid: row for row in watchlist.update(replace(snapshot, time=2_001.0)).processes}
    assert again[2].budget is rows[2].budget
    watchlist.add_run(WatchedJob(job=job, pids=keys[1:]))  # the others are on another machine: which stage is this?
    alone = next(row for row in watchlist.update(replace(snapshot, time=2_002.0)).processes if row.job)
    assert alone.budget.steady_device_bytes == make_budget().steady_device_bytes


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(device_map="auto", pipeline=2)])
def test_what_one_process_holds_on_each_gpu_is_compared_with_its_need_there(parallel: Parallel) -> None:
    job = Job(name="parts", model=ModelSpec(id="gpt2"), parallel=parallel)
    needs = [RankPeak(device_bytes=n * GIB, low_bytes=(n - 2) * GIB, high_bytes=(n + 2) * GIB) for n in (40, 20)]
    watchlist = Watchlist(lambda job: replace(make_budget(job), stages=tuple(needs)))
    watchlist.add_run(make_run(job, 1))
    gpus = [make_gpu(0, [make_process(1, 40)]), make_gpu(1, [make_process(3, 7)]), make_gpu(2, [make_process(1, 20)])]
    board = watchlist.update(make_snapshot(gpus))
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
    watchlist = Watchlist(estimate)
    watchlist.add_run(make_run(job, 1, 2))
    board = watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 70)]), small]))
    large_row, small_row = board.processes
    assert (large_row.comparison.status, small_row.comparison.status) == ("over", "on_budget")
    assert small_row.budget.peak.device_bytes == pytest.approx(12 * GIB, abs=GIB)
    assert board.runs[0].budget is large_row.budget
    again = watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 70)]), small]))
    assert again.processes[0].budget is large_row.budget  # phases are tracked by budget


def test_a_pending_job_is_judged_on_the_gpus_that_it_chooses(machine: Snapshot) -> None:
    watchlist = Watchlist(make_budget)
    chosen = machine.gpus[0]  # the other one has more room
    watchlist.add_pending(Job(model=ModelSpec(id="gpt2"), target=Target(devices=[chosen.uuid])))
    (row,) = watchlist.update(machine).pending
    assert [gpu.device.uuid for gpu in row.fit.gpus] == [chosen.uuid]
    watchlist.add_pending(Job(name="gone", model=ModelSpec(id="gpt2"), target=Target(devices=["GPU-gone"])))
    assert watchlist.update(machine).pending[1].fit.verdict == "does_not_fit"
