"""Explanations of a divergence: the true change is found from the memory that it causes."""

from typing import Any

import pytest
from slow_cases import quick_every

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.cause_search import Estimate, Measure, Observation
from vramtop.estimator.causes.explain import Explanation, explain as explain_observation
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes

TABLES: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "training": {"activation_checkpointing": "full", "micro_batch": 4, "sequence_length": 4096, "precision": "bf16"},
}


def job(**changes: Any) -> Job:
    return with_changes(job_from_mapping(TABLES, where="test"), changes)


SHARDED = {"parallel.strategy": "fsdp2", "parallel.data_shard": 8, "training.precision": "bf16-mixed"}
WHOLE = {"parallel.strategy": "ddp", "parallel.data_shard": 1, "parallel.data_replicate": 8}
QLORA = {"lora.rank": 16, "lora.quantization": "nf4", "lora.kbit_preparation": False}


def explain(
    budget: Budget, observed: int, estimate: Estimate, *, measure: Measure = "device", **seen: Any
) -> tuple[Explanation, ...]:
    return explain_observation(budget, Observation(device_bytes=observed, **seen), observed, estimate, measure=measure)


def alike(found: Any, true: Any) -> bool:
    """Return True for the same setting; lengths, which are searched for, may differ by a quarter."""
    if isinstance(true, int) and isinstance(found, int) and true > 1024:
        return abs(found / true - 1) < 0.25
    return found == true


@pytest.mark.parametrize(
    ("read", "truth"),
    quick_every(
        5,
        [
            ({}, {"training.activation_checkpointing": "none"}),
            (SHARDED, WHOLE),
            (QLORA | {"training.micro_batch": 1}, {"lora.quantization": "none"}),
            ({}, {"training.precision": "bf16-mixed"}),
            (
                {"training.optimizer": "sgd", "training.activation_checkpointing": "none"},
                {"training.sequence_length": 2048},
            ),
            ({**WHOLE, "training.precision": "bf16-mixed"}, {"parallel.strategy": "fsdp2", "parallel.data_shard": 8}),
            (
                {**SHARDED, "parallel.data_shard": 32, "model.id": "meta-llama/Llama-3.1-70B"},
                {"parallel.data_shard": 8, "parallel.data_replicate": 4},
            ),
            (
                {**SHARDED, "parallel.strategy": "zero3", "parallel.data_shard": 32, "training.micro_batch": 1},
                {"parallel.strategy": "zero2"},
            ),
            ({**SHARDED, "parallel.cpu_offload": "all"}, {"parallel.cpu_offload": "none"}),
            ({"training.loss": "fused-linear", "model.id": "Qwen/Qwen3-0.6B"}, {"training.loss": "full"}),
        ],
    ),
)
def test_the_true_cause_is_among_the_first_three(read: dict[str, Any], truth: dict[str, Any]) -> None:
    asked = job(**read)
    observed = estimate(with_changes(asked, truth)).peak.device_bytes
    budget = estimate(asked)
    assert not budget.peak.low_bytes <= observed <= budget.peak.high_bytes  # else there is nothing to explain
    found = explain(budget, observed, estimate)
    assert any(all(alike(each.changes.get(key), value) for key, value in truth.items()) for each in found[:3])
    assert all(each.device_bytes == each.predicted_bytes for each in found)


def test_two_causes_explain_what_no_single_one_does() -> None:
    asked = job()
    truth = {"training.activation_checkpointing": "none", "training.precision": "fp32"}
    observed = estimate(with_changes(asked, truth)).peak.device_bytes
    found = explain(estimate(asked), observed, estimate)
    assert any(truth.items() <= each.changes.items() for each in found)
    assert all(" and " in each.description for each in found)


def test_a_job_that_ran_out_of_memory_needed_more_than_observed() -> None:
    asked, truth = job(), {"training.activation_checkpointing": "none"}
    budget, card = estimate(asked), 150 * GIB
    assert budget.peak.high_bytes < card < estimate(with_changes(asked, truth)).peak.device_bytes
    found = explain(budget, card, estimate, at_least=True)
    assert found[0].changes == truth
    assert truth not in [each.changes for each in explain(budget, card, estimate)]
    assert explain(budget, budget.peak.low_bytes // 2, estimate, at_least=True) == ()


def test_memory_that_no_setting_predicts_has_no_explanation() -> None:
    asked = job()
    assert explain(estimate(asked), 4000 * 2**30, estimate) == ()


@pytest.mark.parametrize("edge", ["low_bytes", "device_bytes", "high_bytes"])
def test_memory_in_the_budgets_range_needs_no_explanation(edge: str) -> None:
    asked = job()
    budget = estimate(asked)
    assert explain(budget, getattr(budget.peak, edge), estimate) == ()


@pytest.mark.slow
def test_causes_that_predict_the_same_bytes_are_one_group() -> None:
    asked = job(**SHARDED)
    observed = estimate(with_changes(asked, {"training.micro_batch": 8})).peak.device_bytes
    first, second, *_ = explain(estimate(asked), observed, estimate)
    assert {first.name, second.name} == {"batch larger", "longer sequences"}
    assert first.group == second.group == 0
    assert first.device_bytes == second.device_bytes


def test_any_shorter_sequence_length_is_found() -> None:
    asked = job(**{"training.activation_checkpointing": "none"})
    observed = estimate(with_changes(asked, {"training.sequence_length": 1300})).peak.device_bytes
    found = next(each for each in explain(estimate(asked), observed, estimate) if each.name == "shorter sequences")
    assert found.changes["training.sequence_length"] == pytest.approx(1300, rel=0.05)


def test_allocated_bytes_reveal_a_cause() -> None:
    asked = job(**{"training.optimizer": "adamw-fused", **SHARDED, "training.micro_batch": 1})
    truth = {"training.optimizer": "adamw-8bit"}
    budget, peak = estimate(asked), estimate(with_changes(asked, truth)).peak
    found = explain(budget, peak.allocated_bytes, estimate, measure="allocated")
    assert truth in [each.changes for each in found]
    assert all(abs(each.predicted_bytes - peak.allocated_bytes) < 0.1 * peak.allocated_bytes for each in found)


def test_a_traced_budget_keeps_its_own_figure() -> None:
    asked, truth = job(), {"training.activation_checkpointing": "none"}
    budget, changed = estimate(asked), estimate(with_changes(asked, truth)).peak
    traced = replace(budget, peak=replace(budget.peak, device_bytes=budget.peak.device_bytes + 3 * GIB))
    found = explain(traced, changed.device_bytes + 3 * GIB, estimate)
    assert found[0].changes == truth
    assert found[0].device_bytes == changed.device_bytes + 3 * GIB


def test_assumed_settings_are_suspected_first() -> None:
    asked = job(**SHARDED)
    observed = estimate(with_changes(asked, {"training.micro_batch": 8})).peak.device_bytes
    found = explain(estimate(asked), observed, estimate, assumed={"training.sequence_length"})
    assert found[0].changes == {"training.sequence_length": 8192}


def test_bucket_views_and_a_second_model_are_found_by_allocated_bytes() -> None:
    asked = job(**{"model.id": "Qwen/Qwen2.5-1.5B", "training.sequence_length": 256, **WHOLE})
    budget = estimate(asked)
    step = budget.phase("optimizer step")  # the peak of so short sequences
    views = estimate(with_changes(asked, {"parallel.gradient_as_bucket_view": True})).peak.allocated_bytes
    found = explain(budget, views, estimate, measure="allocated")
    assert "bucket views" in [each.name for each in found]
    twice = budget.peak.allocated_bytes + step.components.weights
    found = explain(budget, twice, estimate, measure="allocated")
    assert "second model" in [each.name for each in found[:3]]


@pytest.mark.parametrize(
    "changes",
    quick_every(
        4,
        [
            {"training.mode": "inference"},
            {"model.id": "google-bert/bert-base-uncased", "model.task": "masked-lm", "training.sequence_length": 512},
            {"model.id": "mistralai/Mixtral-8x7B-v0.1", "parallel.expert": 8, **SHARDED},
            {"parallel.pipeline": 4, "parallel.tensor": 2, "training.framework": "megatron"},
            {"lora.rank": 8, "lora.targets": ["down_proj"], "lora.quantization": "int8", **SHARDED},
            {"training.micro_batch": 1, "training.sequence_length": 1, "training.optimizer": "sgd-momentum"},
            {
                "parallel.context": 4,
                "training.framework": "torchtitan",
                "training.optimizer_in_backward": True,
                **SHARDED,
            },
            {"parallel.strategy": "megatron-fsdp", "parallel.data_shard": 8, "training.optimizer": "paged-adamw"},
        ],
    ),
)
@pytest.mark.parametrize("share", quick_every(6, [0.0, 0.3, 0.9, 1.15, 1.7, 5.0], start=4, exhaustive=True))
def test_every_kind_of_job_can_be_explained(changes: dict[str, Any], share: float) -> None:
    asked = job(**changes)
    budget = estimate(asked)
    for measure in ("device", "allocated", "outside", "loaded"):
        observed = round(share * budget.peak.device_bytes)
        for each in explain(budget, observed, estimate, measure=measure):
            assert each.description
            assert abs(each.predicted_bytes - observed) <= 0.2 * observed + GIB


def test_a_model_that_the_formula_cannot_read_is_not_explained() -> None:
    asked = job()
    budget = estimate(asked)

    def cannot(changed: Job) -> Any:
        raise CannotTellError(f"{changed.label} is Python code")

    assert explain(budget, 2 * budget.peak.device_bytes, cannot) == ()
