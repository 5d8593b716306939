"""Where a difference lies, and the sentences that say so."""

from typing import Any

import pytest

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.causes.divergence import Counters, Observation, explain_divergence
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB, MIB, format_gib
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import job_from_mapping, with_changes

TABLES: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "training": {"activation_checkpointing": "full", "micro_batch": 4, "sequence_length": 4096},
    "parallel": {"strategy": "fsdp2", "data_shard": 8},
}


@pytest.fixture
def budget() -> Budget:
    return estimate(job_from_mapping(TABLES, where="test"))


def counters(budget: Budget, *, allocated: int = 0, cached: int = 0, **more: int) -> Counters:
    """Torch's, as predicted but for so many bytes."""
    peak = budget.peak
    reserved = peak.reserved_bytes + allocated + cached
    return Counters(
        reserved_bytes=reserved,
        allocated_peak_bytes=peak.allocated_bytes + allocated,
        reserved_peak_bytes=reserved,
        **more,
    )


def outside(budget: Budget) -> int:
    fullest = budget.phase(budget.peak.phase)
    assert fullest is not None
    return fullest.outside_bytes


def test_without_counters_the_sentence_says_what_would_give_it(budget: Budget) -> None:
    truth = with_changes(budget.job, {"training.activation_checkpointing": "none"})
    observed = estimate(truth).peak.device_bytes
    said = explain_divergence(budget, Observation(device_bytes=observed), estimate)
    size = format_gib(observed)
    assert said.sentence.startswith(f"observed {size} GiB, expected {format_gib(budget.steady_device_bytes)}; {size} ")
    assert "activation checkpointing is off" in said.sentence
    assert said.parts == ()
    assert said.lines[0] in said.sentence


def test_tensors_that_differ_are_searched_by_what_is_allocated(budget: Budget) -> None:
    truth = with_changes(budget.job, {"training.activation_checkpointing": "none"})
    more = estimate(truth).peak.allocated_bytes - budget.peak.allocated_bytes
    held = counters(budget, allocated=more)
    assert held.reserved_bytes is not None
    seen = Observation(device_bytes=held.reserved_bytes + outside(budget), counters=held)
    said = explain_divergence(budget, seen, estimate)
    assert {part.name: part.differs for part in said.parts} == {"allocated": True, "cached": False, "outside": False}
    assert said.explanations[0].changes == {"training.activation_checkpointing": "none"}
    assert said.sentence.startswith("tensors take")


def test_what_lies_free_in_the_cache_is_fragmentation_not_a_setting(budget: Budget) -> None:
    held = counters(budget, cached=20 * GIB, retries=3)
    assert held.reserved_bytes is not None
    seen = Observation(device_bytes=held.reserved_bytes + outside(budget), counters=held)
    said = explain_divergence(budget, seen, estimate)
    assert {part.name: part.differs for part in said.parts} == {"allocated": False, "cached": True, "outside": False}
    assert said.explanations == ()
    assert "expandable_segments:True" in said.sentence
    assert "flushed 3 times" in said.sentence


def test_what_torch_never_sees_is_told_apart_from_its_own(budget: Budget) -> None:
    held = counters(budget)
    assert held.reserved_bytes is not None
    seen = Observation(device_bytes=held.reserved_bytes + outside(budget) + 1100 * MIB, counters=held)
    said = explain_divergence(budget, seen, estimate)
    assert {part.name: part.differs for part in said.parts} == {"allocated": False, "cached": False, "outside": True}
    assert said.sentence.startswith("held outside of torch")


def test_parts_that_are_all_as_predicted_are_said_to_be(budget: Budget) -> None:
    held = counters(budget)
    seen = Observation(device_bytes=budget.peak.device_bytes, counters=held)
    said = explain_divergence(budget, seen, estimate)
    assert not any(part.differs for part in said.parts)
    assert said.explanations == ()
    assert "as predicted" in said.sentence


def test_a_reading_older_than_the_counters_tells_nothing_of_what_is_outside(budget: Budget) -> None:
    held = counters(budget)
    said = explain_divergence(budget, Observation(device_bytes=GIB, counters=held), estimate)
    assert [part.name for part in said.parts] == ["allocated", "cached"]


def test_a_process_that_loads_is_held_against_its_weights_alone(budget: Budget) -> None:
    truth = with_changes(budget.job, {"parallel.strategy": "ddp", "parallel.data_shard": 1})
    held = estimate(truth).phases[0].components.total_bytes
    said = explain_divergence(budget, Observation(device_bytes=held, loading=True), estimate)
    assert said.sentence.startswith("held while loading")
    assert said.explanations[0].name == "sharding off"
    assert all("training.activation_checkpointing" not in each.changes for each in said.explanations)


def test_predictions_that_are_equal_stand_in_one_line(budget: Budget) -> None:
    truth = with_changes(budget.job, {"training.micro_batch": 8})
    said = explain_divergence(budget, Observation(device_bytes=estimate(truth).peak.device_bytes), estimate)
    assert "the micro-batch is 8, not 4, or sequences have 8192 tokens" in said.lines[0]
    assert "the same bytes" in said.lines[0]


def test_nothing_found_is_said(budget: Budget) -> None:
    said = explain_divergence(budget, Observation(device_bytes=4000 * GIB), estimate)
    assert said.explanations == ()
    assert said.sentence.endswith("no setting within two changes of the job would explain it")


def test_what_is_in_range_and_what_cannot_be_read_is_said(budget: Budget) -> None:
    assert (
        "within the error"
        in explain_divergence(budget, Observation(device_bytes=budget.peak.device_bytes), estimate).sentence
    )
    assert "cannot be read" in explain_divergence(budget, Observation(device_bytes=None), estimate).sentence


def test_settings_that_cannot_be_searched_are_no_claim(budget: Budget) -> None:
    def cannot(changed: Job) -> Any:
        raise CannotTellError(f"{changed.label} is Python code")

    said = explain_divergence(budget, Observation(device_bytes=4000 * GIB), cannot)
    assert said.sentence.endswith("its settings cannot be searched: Llama-3.1-8B is Python code")


def test_a_job_that_ran_out_of_memory_is_told_by_what_it_lacked(budget: Budget) -> None:
    seen = Observation(device_bytes=2 * budget.peak.device_bytes, at_least=True, counters=counters(budget))
    said = explain_divergence(budget, seen, estimate)
    assert said.sentence.startswith("ran out of memory with")
    assert said.explanations
