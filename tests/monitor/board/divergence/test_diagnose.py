"""The figures of a diverging process that are passed to the estimator."""

import pytest
import simulated_machine as simulated

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.learning.correction import corrected
from vramtop.monitor.board.comparison import Comparison, compare_with_budget
from vramtop.monitor.board.diagnosis import diagnose
from vramtop.monitor.board.run_phases import PhaseTracker
from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessCounters

TABLES = {
    "model": {"id": "Qwen/Qwen2.5-7B"},
    "training": {"activation_checkpointing": "full", "micro_batch": 4, "sequence_length": 4096, "precision": "bf16"},
}
TRUTH = {"training.activation_checkpointing": "none"}


@pytest.fixture
def budget() -> Budget:
    return estimate(job_from_mapping(TABLES, where="test"))


@pytest.fixture
def actual_budget(budget: Budget) -> Budget:
    return estimate(with_changes(budget.job, TRUTH))


def compare(budget: Budget, process: GpuProcess) -> Comparison:
    tracker = PhaseTracker(budget)
    readings = [(float(second), process.used_bytes) for second in range(400)]
    for time, size in readings:
        tracker.add(time, size)
    return compare_with_budget(tracker, readings, process=process)


def process(budget: Budget) -> GpuProcess:
    return GpuProcess(pid=1, start_time=0.0, used_bytes=budget.peak.device_bytes, kinds=("compute",))


def test_a_process_without_the_probe_is_explained_by_its_total_memory(budget: Budget, actual_budget: Budget) -> None:
    running = process(actual_budget)
    said = diagnose(budget, compare(budget, running), running, estimate)
    assert said.explanations[0].changes == TRUTH
    assert said.parts == ()
    assert said.sentence.startswith("observed ")


def test_torch_counters_split_the_memory_of_a_process(budget: Budget, actual_budget: Budget) -> None:
    counters = ProcessCounters(
        time=399.0,
        reserved_bytes=actual_budget.peak.reserved_bytes,
        reserved_peak_bytes=actual_budget.peak.reserved_bytes,
        allocated_peak_bytes=actual_budget.peak.allocated_bytes,
        steps=10,
    )
    running = replace(process(actual_budget), counters=counters)
    said = diagnose(budget, compare(budget, running), running, estimate)
    assert [part.name for part in said.parts if part.differs] == ["allocated"]
    assert said.explanations[0].changes == TRUTH


def test_assumed_settings_are_preferred_as_explanations(budget: Budget) -> None:
    running = process(estimate(with_changes(budget.job, {"training.micro_batch": 16})))
    comparison = compare(budget, running)
    plain = diagnose(budget, comparison, running, estimate).explanations
    doubted = diagnose(budget, comparison, running, estimate, assumed={"training.sequence_length"}).explanations
    assert plain[0].name != "longer sequences"
    assert doubted[0].name == "longer sequences"


def test_causes_are_searched_with_what_measured_runs_say_of_the_changed_job() -> None:
    machine = simulated.Machine(tokens=0.4, noise=0.0)
    job, batch = simulated.job(micro_batch=2), {"training.micro_batch": 8}
    runs = [machine.run(job)]
    budget = corrected(simulated.budget_of(job), simulated.subject_of(job), runs)
    truth = machine.truth(with_changes(job, batch), noisy=False).device_bytes or 0
    running = GpuProcess(pid=1, start_time=0.0, used_bytes=truth, kinds=("compute",))
    said = diagnose(budget, compare(budget, running), running, simulated.budget_of)
    found = [each for each in said.explanations if each.changes == batch]
    assert found
    assert found[0].device_bytes == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize(
    ("counters", "first", "last"),
    [
        (None, "tensors stay alive", "vramtop run -- COMMAND"),
        (
            ProcessCounters(time=0.0, allocated_bytes=58 * GIB, reserved_bytes=60 * GIB),
            "tensors stay alive",
            "snapshot 7",
        ),
        (
            ProcessCounters(time=0.0, allocated_bytes=30 * GIB, reserved_bytes=60 * GIB),
            "or torch's cache",
            "tensors stay",
        ),
    ],
)
def test_growth_is_no_setting(budget: Budget, counters: ProcessCounters | None, first: str, last: str) -> None:
    """By how much a minute, since when, when the GPU is full, and what keeps memory."""
    at = budget.steady_device_bytes
    held = [(float(n), at + n * 10 * MIB) for n in range(300)]
    tracker = PhaseTracker(budget, start_time=0.0)
    for time, size in held:
        tracker.add(time, size)
    running = GpuProcess(pid=7, start_time=0.0, used_bytes=held[-1][1], kinds=("compute",), counters=counters)
    comparison = compare_with_budget(tracker, held, process=running, left_bytes=6000 * MIB)
    said = diagnose(budget, comparison, running, estimate)
    assert "has grown by 0.6 GiB per minute since " in said.sentence
    assert said.sentence.startswith("GPU full in about 9 min")
    assert said.explanations == ()
    assert said.lines[0].startswith(first)
    assert last in said.lines[-1]
