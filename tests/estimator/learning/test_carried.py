"""A correction carried to a changed job is about what measurements say of it, and stays within its mechanism."""

import pytest
from simulated_machine import MIB, NOW, Machine, budget_of, job, subject_of

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.job import Job
from vramtop.estimator.learning.correction import carried, corrected

MACHINE = Machine(tokens=0.25, context=200 * MIB, noise=0.0)
RUNS = [MACHINE.run(job(micro_batch=size)) for size in (1, 2, 4)]
TARGET = job(micro_batch=8)


def correct(each: Job) -> Budget:
    return corrected(budget_of(each), subject_of(each), RUNS, now=NOW, version="1")


@pytest.mark.slow
def test_it_is_about_what_the_measurements_say() -> None:
    like = correct(TARGET)
    for size in (3, 6, 12):
        changed = job(micro_batch=size)
        exact, quick = correct(changed).peak, carried(budget_of(changed), like).peak
        assert abs(quick.device_bytes - exact.device_bytes) < 0.03 * exact.device_bytes
        assert abs(quick.high_bytes - exact.high_bytes) < 0.06 * exact.high_bytes
    again = carried(budget_of(TARGET), like).peak
    for figure in ("allocated_bytes", "reserved_bytes", "device_bytes", "low_bytes", "high_bytes"):
        assert abs(getattr(again, figure) - getattr(like.peak, figure)) <= 16  # rounding


def test_nothing_of_the_step_is_carried_to_another_mechanism() -> None:
    changed = job(micro_batch=8, activation_checkpointing="full")
    before, after = budget_of(changed).peak, carried(budget_of(changed), correct(TARGET)).peak
    assert after.allocated_bytes == before.allocated_bytes
    assert after.components.context > before.components.context


def test_without_a_correction_nothing_changes() -> None:
    changed = job(micro_batch=4)
    assert carried(budget_of(changed), budget_of(TARGET)) is budget_of(changed)
