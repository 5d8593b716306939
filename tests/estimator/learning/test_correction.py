"""The correction: what was seen of the very job is expected again, and nothing of any other."""

import pytest
from simulated_machine import MIB, NOW, Machine, budget_of, job, subject_of

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.learning.correction import carried, corrected, uncorrected
from vramtop.estimator.learning.measurement import Measurement, Observed

TARGET = job(micro_batch=8)


def correct(each: Job, *runs: Measurement, **place: object) -> Budget:
    return corrected(budget_of(each), subject_of(each, **place), runs)


def error(budget: Budget, truth: Observed) -> float:
    assert truth.device_bytes
    return abs(budget.peak.device_bytes - truth.device_bytes) / truth.device_bytes


def holds(budget: Budget, truth: Observed) -> bool:
    return budget.peak.low_bytes <= (truth.device_bytes or 0) <= budget.peak.high_bytes


def width(budget: Budget) -> int:
    return budget.peak.high_bytes - budget.peak.low_bytes


@pytest.mark.parametrize("tokens", [0.25, -0.4])
@pytest.mark.parametrize("known", ["probe", "readings"])
def test_the_same_job_is_expected_to_do_what_it_did(known: str, tokens: float) -> None:
    machine = Machine(tokens=tokens, slack=0.03, context=200 * MIB)
    truth = machine.truth(TARGET)
    found = correct(TARGET, *(machine.run(TARGET, days_ago=days, known=known) for days in (1, 2, 3)))
    assert not holds(budget_of(TARGET), truth)
    assert holds(found, truth)
    assert error(found, truth) < 0.01
    assert width(found) < 0.5 * width(budget_of(TARGET))
    assert found.learned.sentence.startswith("measured here 3 times, last on 2027-01-1")
    assert found.learned.uncorrected == budget_of(TARGET).peak
    assert uncorrected(found).peak == budget_of(TARGET).peak


@pytest.mark.parametrize("known", ["probe", "readings"])
@pytest.mark.parametrize("machine", [Machine(tokens=0.3), Machine(tokens=-0.9), Machine(context=-10_000 * MIB)])
def test_the_figures_stay_those_of_one_process(machine: Machine, known: str) -> None:
    found = correct(TARGET, machine.run(TARGET, known=known))
    peak, phase = found.peak, found.phase(found.peak.phase)
    assert peak.allocated_bytes <= peak.reserved_bytes <= peak.device_bytes
    assert peak.low_bytes <= peak.device_bytes <= peak.high_bytes
    assert peak.components.total_bytes - (peak.device_bytes - peak.reserved_bytes) == peak.allocated_bytes
    assert phase.components == peak.components
    assert phase.allocated_bytes == peak.allocated_bytes
    assert all(size >= 0 for each in found.phases for _, size in each.components.items())
    assert Budget.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "change", [{"micro_batch": 4}, {"length": 1024}, {"optimizer": "adamw-8bit"}, {"activation_checkpointing": "full"}]
)
def test_another_job_says_nothing(change: dict[str, object]) -> None:
    run = Machine(tokens=0.25).run(job(**{"micro_batch": 8, **change}))  # type: ignore[arg-type]
    assert correct(TARGET, run) is budget_of(TARGET)


@pytest.mark.parametrize(
    ("place", "counts"),
    [
        ({}, True),
        ({"machine": "there"}, True),
        ({"versions": {}}, True),
        ({"versions": {"torch": "2.9.0+cu128"}}, True),
        ({"versions": {"torch": "2.8.1"}}, False),
        ({"allocator": "expandable_segments:True"}, False),
        ({"card": "NVIDIA A100-SXM4-80GB"}, False),
        ({"card": None}, False),
    ],
)
def test_the_same_job_counts_on_the_same_card_releases_and_allocator(place: dict[str, object], counts: bool) -> None:
    found = correct(TARGET, Machine(tokens=0.25).run(TARGET), **place)
    assert (found.learned is not None) == counts
    if "machine" in place and found.learned:
        assert found.learned.sentence.startswith("measured on this kind of card once, on ")


def test_runs_of_this_machine_come_before_those_of_others() -> None:
    here, there = Machine(tokens=0.1), Machine(tokens=0.4)
    runs = [here.run(TARGET, days_ago=9), *(there.run(TARGET, machine="there") for _ in range(3))]
    assert error(correct(TARGET, *runs), here.truth(TARGET)) < 0.01


@pytest.mark.parametrize("state", ["growing", "out_of_memory", "short"])
def test_runs_that_say_nothing_of_the_peak_are_left_out(state: str) -> None:
    assert correct(TARGET, Machine(tokens=0.25).run(TARGET, state=state)) is budget_of(TARGET)


def test_one_odd_run_is_outvoted_and_stays_in_the_range() -> None:
    machine = Machine(tokens=0.1, noise=0.0)
    odd = Machine(tokens=0.3, noise=0.0).run(TARGET, days_ago=0.5)
    found = correct(TARGET, odd, *(machine.run(TARGET, days_ago=days) for days in (1, 2, 3)))
    assert error(found, machine.truth(TARGET)) < 0.01
    assert holds(found, odd.observed)


def test_newer_runs_and_newer_releases_outweigh_older_ones() -> None:
    before, after = Machine(tokens=0.3), Machine(tokens=0.1)
    old = [before.run(TARGET, days_ago=20 + days) for days in range(8)]
    new = [after.run(TARGET, days_ago=days) for days in range(3)]
    assert error(correct(TARGET, *old, *new), after.truth(TARGET)) < 0.01
    updated = after.run(TARGET, days_ago=1, versions={"torch": "2.10.0"})
    assert error(correct(TARGET, *old, updated, versions={}), after.truth(TARGET)) < 0.01


def test_what_another_version_of_vramtop_saw_of_the_job_stays_true() -> None:
    machine = Machine(tokens=0.2)
    run = machine.run(TARGET)
    run = replace(run, predicted=(replace(run.predicted[0], version="0"),), time=NOW)
    assert error(correct(TARGET, run), machine.truth(TARGET)) < 0.01


def test_a_correction_is_carried_in_proportion_to_the_step() -> None:
    machine = Machine(tokens=0.25, context=200 * MIB, noise=0.0)
    like = correct(TARGET, machine.run(TARGET))
    assert carried(budget_of(TARGET), like) is like
    for change in ({"micro_batch": 4}, {"micro_batch": 12}, {"micro_batch": 8, "length": 1024}):
        changed = job(**change)
        found = carried(budget_of(changed), like)
        assert error(found, machine.truth(changed)) < 0.03
        assert holds(found, machine.truth(changed))
        assert width(found) >= 0.9 * width(budget_of(changed))
    assert carried(budget_of(job(micro_batch=4)), budget_of(TARGET)) is budget_of(job(micro_batch=4))
