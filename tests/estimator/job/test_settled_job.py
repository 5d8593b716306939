"""What a job leaves to its library: each default, and what versions and sharding change about it."""

import pytest

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.job.rules.library_defaults import DEFAULTS
from vramtop.estimator.job.settled import settled

ZERO = {"strategy": "zero3", "data_shard": 2}
INT8 = {"quantization": "int8"}


@pytest.mark.parametrize(
    ("tables", "stored", "expected"),
    [
        ({}, "bf16", ("bf16", "adamw-fused")),
        ({}, "fp16", ("fp16", "adamw-fused")),
        ({}, "fp32", ("fp32", "adamw-fused")),
        ({}, None, ("bf16", "adamw-fused")),
        ({"software": {"transformers": "4.57.1"}}, "bf16", ("fp32", "adamw")),
        ({"software": {"transformers": "5.2", "torch": "2.7.1"}}, "bf16", ("bf16", "adamw")),
        ({"training": {"mode": "inference"}}, "fp16", ("fp16", "adamw-fused")),
        ({"training": {"mode": "inference"}, "inference": {"engine": "vllm"}}, "fp32", ("fp16", "adamw-fused")),
        ({"parallel": ZERO}, "bf16", ("bf16-mixed", "adamw-fused")),  # DeepSpeed keeps an fp32 copy
        ({"parallel": ZERO}, "fp32", ("fp32", "adamw-fused")),
        ({"parallel": {"strategy": "fsdp2", "data_shard": 2}}, "bf16", ("bf16", "adamw-fused")),
        ({"training": {"framework": "torchtitan"}}, "bf16", ("bf16-mixed", "adamw-fused")),
        ({"training": {"framework": "torchtune"}}, "fp32", ("bf16", "adamw-fused")),
        ({"training": {"framework": "litgpt"}}, "bf16", ("bf16-mixed", "adamw")),
        ({"training": {"framework": "litgpt"}, "lora": INT8}, "bf16", ("bf16", "paged-adamw")),
        ({"training": {"precision": "fp32", "optimizer": "sgd"}}, "bf16", ("fp32", "sgd")),
    ],
)
def test_what_is_not_set_is_what_the_library_does(tables, stored, expected) -> None:
    training = settled(job_from_mapping(tables, where="test"), stored).training
    assert (training.precision, training.optimizer) == expected


def test_each_framework_has_a_default_of_each_kind_with_its_source() -> None:
    stated = {(row.library, row.key) for row in DEFAULTS}
    for name in FRAMEWORKS:
        assert {(name, "training.precision"), (name, "training.optimizer")} <= stated
    assert all(row.source and bool(row.before) == bool(row.older) for row in DEFAULTS)


def test_a_resolved_job_has_no_auto() -> None:
    resolved = resolve_job(job_from_mapping({}, where="test"))
    assert (resolved.training.precision, resolved.precision.name, resolved.optimizer.name) == (
        "bf16",
        "bf16",
        "adamw-fused",
    )
