"""The part of a job's memory that differs from its budget, and the sentences that report it."""

from dataclasses import dataclass
from typing import Any

import pytest

from vramtop.estimator.budget import Budget, RehearsalFacts
from vramtop.estimator.causes.cause_search import Observation
from vramtop.estimator.causes.divergence import Divergence, explain_divergence
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, MIB, format_gib
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.job.settings import Program

TABLES: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "training": {"activation_checkpointing": "full", "micro_batch": 4, "sequence_length": 4096},
    "parallel": {"strategy": "fsdp2", "data_shard": 8},
}


@pytest.fixture
def budget() -> Budget:
    return estimate(job_from_mapping(TABLES, where="test"))


@dataclass(frozen=True)
class Counters:
    """torch's counters, as the probe reports them."""

    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    retries: int | None = None
    out_of_memory: int | None = None


def counters(budget: Budget, *, allocated: int = 0, cached: int = 0, **more: int) -> Counters:
    """Return torch's counters as predicted, with some bytes added."""
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
    return fullest.outside_bytes


def differing(divergence: Divergence) -> list[str]:
    """Return the parts that differ, of all three."""
    assert [part.name for part in divergence.parts] == ["allocated", "cached", "outside"]
    return [part.name for part in divergence.parts if part.differs]


def with_counters(budget: Budget, held: Counters, *, more_outside: int = 0) -> Divergence:
    """Explain a process that holds what torch's counters say, and some bytes outside of torch."""
    assert held.reserved_bytes is not None
    seen = Observation(device_bytes=held.reserved_bytes + outside(budget) + more_outside, counters=held)
    return explain_divergence(budget, seen, estimate)


@pytest.mark.slow
def test_without_counters_the_sentence_has_the_explanation(budget: Budget) -> None:
    truth = with_changes(budget.job, {"training.activation_checkpointing": "none"})
    observed = estimate(truth).peak.device_bytes
    divergence = explain_divergence(budget, Observation(device_bytes=observed), estimate)
    size = format_gib(observed)
    assert divergence.sentence.startswith(
        f"observed {size} GiB, expected {format_gib(budget.steady_device_bytes)}; {size} "
    )
    assert "activation checkpointing is off" in divergence.sentence
    assert divergence.parts == ()
    assert divergence.lines[0] in divergence.sentence


def test_a_difference_in_tensors_is_searched_by_allocated_bytes(budget: Budget) -> None:
    truth = with_changes(budget.job, {"training.activation_checkpointing": "none"})
    more = estimate(truth).peak.allocated_bytes - budget.peak.allocated_bytes
    divergence = with_counters(budget, counters(budget, allocated=more))
    assert differing(divergence) == ["allocated"]
    assert divergence.explanations[0].changes == {"training.activation_checkpointing": "none"}
    assert divergence.sentence.startswith("tensors take")


def test_more_free_cache_than_expected_is_fragmentation_not_a_setting(budget: Budget) -> None:
    divergence = with_counters(budget, counters(budget, cached=20 * GIB, retries=3))
    assert differing(divergence) == ["cached"]
    assert divergence.explanations == ()
    assert "expandable_segments:True" in divergence.sentence
    assert "flushed 3 times" in divergence.sentence


def test_memory_outside_of_torch_is_a_separate_part(budget: Budget) -> None:
    divergence = with_counters(budget, counters(budget), more_outside=1100 * MIB)
    assert differing(divergence) == ["outside"]
    assert divergence.sentence.startswith("outside torch")


def test_parts_that_are_all_as_predicted_are_reported_so(budget: Budget) -> None:
    held = counters(budget)
    seen = Observation(device_bytes=budget.peak.device_bytes, counters=held)
    divergence = explain_divergence(budget, seen, estimate)
    assert not any(part.differs for part in divergence.parts)
    assert divergence.explanations == ()
    assert "as predicted" in divergence.sentence


def test_a_reading_older_than_the_counters_gives_no_outside_part(budget: Budget) -> None:
    held = counters(budget)
    divergence = explain_divergence(budget, Observation(device_bytes=GIB, counters=held), estimate)
    assert [part.name for part in divergence.parts] == ["allocated", "cached"]


def test_a_loading_process_is_compared_with_the_loading_phase(budget: Budget) -> None:
    truth = with_changes(budget.job, {"parallel.strategy": "ddp", "parallel.data_shard": 1})
    held = estimate(truth).phases[0].components.total_bytes
    divergence = explain_divergence(budget, Observation(device_bytes=held, loading=True), estimate)
    assert divergence.sentence.startswith("while loading")
    assert divergence.explanations[0].name == "sharding off"
    assert all("training.activation_checkpointing" not in each.changes for each in divergence.explanations)


def test_equal_predictions_share_one_line(budget: Budget) -> None:
    truth = with_changes(budget.job, {"training.micro_batch": 8})
    divergence = explain_divergence(budget, Observation(device_bytes=estimate(truth).peak.device_bytes), estimate)
    assert "the micro-batch is 8, not 4, or inputs are not truncated to 4096 tokens" in divergence.lines[0]
    assert "the same memory" in divergence.lines[0]


def test_a_search_without_result_is_reported(budget: Budget) -> None:
    divergence = explain_divergence(budget, Observation(device_bytes=4000 * GIB), estimate)
    assert divergence.explanations == ()
    assert divergence.sentence.endswith("no combination of up to two changed settings explains it")


def test_memory_in_range_and_unreadable_memory_are_reported(budget: Budget) -> None:
    assert (
        "within the prediction error"
        in explain_divergence(budget, Observation(device_bytes=budget.peak.device_bytes), estimate).sentence
    )
    assert "cannot read" in explain_divergence(budget, Observation(device_bytes=None), estimate).sentence


def test_a_job_that_cannot_be_estimated_is_reported(budget: Budget) -> None:
    def cannot(changed: Job) -> Any:
        raise CannotTellError(f"{changed.label} is Python code")

    divergence = explain_divergence(budget, Observation(device_bytes=4000 * GIB), cannot)
    assert divergence.sentence.endswith("the search for causes failed: Llama-3.1-8B is Python code")


def test_a_job_that_ran_out_of_memory_is_explained_by_larger_predictions(budget: Budget) -> None:
    seen = Observation(device_bytes=2 * budget.peak.device_bytes, at_least=True, counters=counters(budget))
    divergence = explain_divergence(budget, seen, estimate)
    assert divergence.sentence.startswith("ran out of memory with")
    assert divergence.explanations


def test_a_rehearsed_program_differs_by_what_its_rehearsal_has_not_seen(budget: Budget) -> None:
    facts = RehearsalFacts(
        python="python",
        versions={},
        optimizer_steps={"AdamW": 3},
        step=3,
        seconds=1,
        host_bytes=GIB,
        time=0,
        growth_bytes=9 * MIB,
    )
    rehearsed = replace(budget, rehearsal=facts, job=Job(program=Program(command="python train.py")))
    more = explain_divergence(rehearsed, Observation(device_bytes=4000 * GIB), estimate)
    assert more.sentence == f"observed 4000.0 GiB, expected {format_gib(budget.steady_device_bytes)}"
    assert more.lines == (
        "its batches may be larger or longer than those of the 3 rehearsed optimizer steps",
        "evaluation and saving: not counted, the rehearsal did not reach them",
        "each rehearsed step kept 9 MiB",
        "vramtop run -- COMMAND starts it with a probe, which tells tensors from cache and CUDA's part",
    )
    less = explain_divergence(rehearsed, Observation(device_bytes=MIB), estimate)
    assert less.lines == ("its batches may be smaller or shorter than those of the 3 rehearsed optimizer steps",)
