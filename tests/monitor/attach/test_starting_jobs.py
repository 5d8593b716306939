from typing import Any

import pytest
from builders import make_attachment, make_budget, make_gpu, make_process, make_snapshot

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.estimator.readers.source.evidence import FindingCollector
from vramtop.monitor.attach.attachment import Attachment, RankProcess
from vramtop.monitor.attach.gpu_assignment import GpuAssignment, GpuEnvironment
from vramtop.monitor.attach.starting_processes import (
    StartingProcess,
    find_starting_processes,
    remaining_bytes_by_device,
)
from vramtop.monitor.board.board import GpuRow, ProcessRow
from vramtop.monitor.board.comparison import Comparison
from vramtop.monitor.board.watchlist import committed_bytes
from vramtop.monitor.snapshot.snapshot import Snapshot


def attachment(*pids: int, missing: bool = False) -> Attachment:
    """An attachment to a job with these ranks."""
    collector = FindingCollector()
    collector.record("model.id", "gpt2", "somewhere")
    collector.record("training.sequence_length", 512, "somewhere")
    if not missing:
        collector.record("training.micro_batch", 1, "somewhere")
    seat = GpuAssignment(gpu=None, origin="nothing", certainty="unsure")
    ranks = tuple(
        RankProcess(
            pid=pid,
            start_time=1_990.0,
            rank=at,
            local_rank=at,
            gpu_hint=None,
            gpu_environment=GpuEnvironment(),
            gpu_assignment=seat,
        )
        for at, pid in enumerate(pids)
    )
    return make_attachment(pid=pids[0], start_time=1_990.0, ranks=ranks, reading=collector.build())


@pytest.fixture
def machine() -> Snapshot:
    """Two ranks that have just started, an old job, a desktop process, and a process of unknown memory."""
    young, old = {"start_time": 1_990.0}, {"start_time": 100.0}
    first = [make_process(1, 10, **young), make_process(3, 10, **old), make_process(4, 1, kinds=("graphics",), **young)]
    return make_snapshot(
        [make_gpu(0, first), make_gpu(1, [make_process(2, 38, **young), make_process(5, None, **young)])]
    )


def test_starting_jobs_have_the_rest_of_their_budget_committed(machine: Snapshot) -> None:
    read: list[int] = []

    def attach(pid: int, **_: object) -> Attachment:
        read.append(pid)
        if pid == 5:
            raise CannotTellError("runs no Python")
        return attachment(1, 2)

    found = find_starting_processes(machine, lambda _: make_budget(), read_run=attach)
    whole = make_budget().steady_device_bytes
    assert remaining_bytes_by_device(found) == {0: whole - 10 * GIB, 1: whole - 38 * GIB}
    assert read == [1, 5]  # one rank is read for all; the old job and the desktop are not read
    assert found[0].sentence == "GPU 0: process 1 has just started and is expected to take 30.0 GiB more."
    assert find_starting_processes(machine, lambda _: make_budget(), read_run=attach, only=[1], exclude_pids=[2]) == ()


def test_nothing_is_committed_for_jobs_without_a_budget(machine: Snapshot) -> None:
    def refuse(_: Attachment) -> Budget:
        raise CannotTellError("no such model")

    assert find_starting_processes(machine, refuse, read_run=lambda pid, **_: attachment(pid)) == ()
    asks = find_starting_processes(
        machine, lambda _: make_budget(), read_run=lambda pid, **_: attachment(pid, missing=True)
    )
    assert asks == ()


def test_thousands_of_processes_that_have_just_started_are_not_all_read() -> None:
    clock, sentences = [0.0], list[str]()

    def slowly(pid: int, **_: object) -> Attachment:
        clock[0] += 0.5
        raise CannotTellError("runs no Python")

    many = make_snapshot([make_gpu(0, [make_process(pid, 0.01, start_time=1_990.0) for pid in range(1, 5_001)])])
    unread = {"on_unread": sentences.append, "seconds": 2, "clock": lambda: clock[0]}
    assert find_starting_processes(many, lambda _: pytest.fail("no budget"), read_run=slowly, **unread) == ()
    assert clock[0] <= 3
    assert sentences == [
        "4,995 processes have just started and could not be read within 2 seconds; their future memory is not counted."
    ]


def test_each_pipeline_stage_has_its_own_need_committed(machine: Snapshot) -> None:
    job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=2))
    budget = make_budget(job)
    needs = tuple(replace(budget.ranks[0], device_bytes=size * GIB) for size in (50, 40))
    found = find_starting_processes(
        machine, lambda _: replace(budget, stages=needs), read_run=lambda pid, **_: attachment(1, 2)
    )
    assert found == (
        StartingProcess(gpu_index=0, pid=1, remaining_bytes=40 * GIB, device_index=0),
        StartingProcess(gpu_index=1, pid=2, remaining_bytes=2 * GIB, device_index=1),
    )


@pytest.mark.parametrize(("phase", "committed"), [("loading", 30), ("steady", 0), (None, 30)])
def test_nothing_is_committed_for_a_job_that_is_steady_below_its_budget(phase: Any, committed: int) -> None:
    process = make_process(used=10)
    gpu, budget = make_gpu(0, [process]), make_budget()
    compared = Comparison(
        status="under",
        observed_bytes=10 * GIB,
        peak_usage=None,
        expected_bytes=budget.steady_device_bytes,
        sentence="",
        phase=phase,
    )
    row = ProcessRow(gpu=gpu, process=process, elapsed_seconds=1.0, budget=budget, comparison=compared)
    assert committed_bytes([GpuRow(reading=gpu, rows=(row,))]).get(0, 0) == committed * GIB
