"""Every cause in the search changes the job, and the result is a valid job."""

from typing import Any

import pytest

from vramtop.estimator.causes.explain import extra_memory_causes, setting_causes
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes


def job(**changes: Any) -> Job:
    tables = {"model": {"id": "Qwen/Qwen2.5-7B"}, "training": {"micro_batch": 4, "precision": "bf16"}}
    return with_changes(job_from_mapping(tables, where="test"), changes)


KINDS: list[dict[str, Any]] = [
    {},
    {"training.activation_checkpointing": "full", "training.loss": "chunked", "training.compile": True},
    {"training.activation_offload": True, "training.optimizer_in_backward": True, "model.attention": "eager"},
    {"lora.rank": 16, "lora.quantization": "nf4", "training.optimizer": "paged-adamw"},
    {"lora.rank": 16, "lora.targets": "all-linear", "training.precision": "fp16-mixed"},
    {"parallel.strategy": "ddp", "parallel.data_replicate": 4, "training.gradient_accumulation": 4},
    {"parallel.strategy": "fsdp1", "parallel.data_shard": 16, "parallel.data_replicate": 2},
    {"parallel.strategy": "zero2", "parallel.data_shard": 8, "parallel.cpu_offload": "optimizer"},
    {"parallel.strategy": "megatron-fsdp", "parallel.data_shard": 8, "training.framework": "megatron"},
    {"parallel.tensor": 2, "parallel.pipeline": 2, "parallel.context": 2, "training.precision": "fp32"},
    {"training.mode": "inference"},
]


@pytest.mark.parametrize("changes", KINDS)
def test_each_cause_changes_the_job_or_adds_bytes(changes: dict[str, Any]) -> None:
    asked = job(**changes)
    found = [*setting_causes(asked), *extra_memory_causes(asked, estimate(asked))]
    seen = [with_changes(asked, cause.changes) for cause in found if cause.changes]
    assert len(seen) > 10
    assert all(changed != asked for changed in seen)
    assert all(cause.changes or cause.allocated_bytes or cause.outside_bytes for cause in found)
    assert all(
        cause.plausibility > 0 and cause.description[0].islower() and not cause.description.endswith(".")
        for cause in found
    )


def test_sharding_that_is_not_applied_keeps_the_number_of_gpus() -> None:
    asked = job(**{"parallel.strategy": "fsdp2", "parallel.data_shard": 4, "parallel.data_replicate": 2})
    off = next(cause for cause in setting_causes(asked) if cause.name == "sharding off")
    assert with_changes(asked, off.changes).parallel.world_size == 8


def test_a_cause_is_more_plausible_if_the_setting_was_assumed() -> None:
    plain, doubted = (
        {cause.name: cause.plausibility for cause in setting_causes(job(), assumed)}
        for assumed in ((), ("model.attention",))
    )
    assert doubted["attention eager"] > plain["attention eager"]
    assert doubted["checkpointing on"] == plain["checkpointing on"]


def test_the_upcast_of_a_quantized_model_is_two_bytes_of_all_that_is_not_quantized() -> None:
    asked = job(**{"lora.rank": 16, "lora.quantization": "nf4", "lora.kbit_preparation": False})
    found = next(cause for cause in setting_causes(asked) if cause.name == "upcast for k-bit training")
    upcast = estimate(with_changes(asked, found.changes)).peak.components
    embedding_and_head = 2 * 152064 * 3584
    norms = (2 * 28 + 1) * 3584
    more = upcast.weights - estimate(asked).peak.components.weights
    assert more == pytest.approx(2 * (embedding_and_head + norms), rel=0.03)


def test_causes_that_change_the_same_key_are_not_combined() -> None:
    asked = job(**{"lora.rank": 16, "lora.quantization": "nf4"})
    found = {cause.name: cause for cause in setting_causes(asked)}
    assert found["all weights trained"].keys & found["quantization off"].keys
    assert not found["checkpointing on"].keys & found["quantization off"].keys


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("fsdp2", {"fewer ranks": 4, "more ranks": 16}),
        ("zero2", {"fewer ranks": 4, "more ranks": 16, "stage 1": "zero1", "stage 3": "zero3"}),
        ("ddp", {}),
    ],
)
def test_another_stage_of_zero_and_half_and_twice_the_ranks_are_causes(strategy: str, names: dict[str, Any]) -> None:
    over = "data_replicate" if strategy == "ddp" else "data_shard"
    found = [*setting_causes(job(**{"parallel.strategy": strategy, f"parallel.{over}": 8}))]
    changed = {each.name: next(iter(each.changes.values())) for each in found if each.name.endswith("ranks")}
    changed |= {each.name: each.changes["parallel.strategy"] for each in found if each.name.startswith("stage ")}
    assert changed == names


@pytest.mark.parametrize(
    ("strategy", "now", "others"),
    [
        ("fsdp1", "full", {"none"}),
        ("fsdp1", "grad_op", {"none", "full"}),
        ("megatron-fsdp", "full", {"none", "optim", "optim_grads"}),
        ("megatron-fsdp", "optim", {"none", "optim_grads", "optim_grads_params"}),
        ("fsdp2", "full", set()),
    ],
)
def test_a_strategy_is_suspected_of_its_own_shardings_only(strategy: str, now: str, others: set[str]) -> None:
    parallel = {"parallel.strategy": strategy, "parallel.data_shard": 4, "parallel.sharding": now}
    found = [cause.changes.get("parallel.sharding") for cause in setting_causes(job(**parallel))]
    assert {each for each in found if each is not None} == others
