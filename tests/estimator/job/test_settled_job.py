"""What a job leaves to its library, and what follows from its settings: widths, shards and rules."""

from typing import Any

import pytest

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import ResolvedJob, resolve_job
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


def resolved(**tables: dict[str, Any]) -> ResolvedJob:
    return resolve_job(job_from_mapping(tables, where="test"))


@pytest.mark.parametrize(
    ("training", "parallel", "widths"),
    [
        ({"precision": "fp32"}, {}, (4, 4, 4, 0)),
        ({"precision": "bf16-mixed"}, {}, (4, 4, 2, 0)),
        ({"precision": "bf16"}, {}, (2, 2, 2, 0)),
        ({"precision": "bf16"}, {"strategy": "zero2"}, (2, 2, 2, 4)),
        ({"precision": "bf16-mixed", "framework": "megatron"}, {}, (2, 4, 2, 4)),
        ({"precision": "bf16-mixed", "framework": "megatron"}, {"reduce_dtype": "bf16"}, (2, 2, 2, 4)),
    ],
)
def test_bytes_of_weights_gradients_operands_and_master_weights(training, parallel, widths) -> None:
    found = resolved(training=training, parallel=parallel).widths
    assert (found.weight, found.gradient, found.compute, found.master) == widths


def test_context_parallelism_splits_a_sequence() -> None:
    job = resolved(training={"micro_batch": 2, "sequence_length": 1001}, parallel={"context": 4})
    assert (job.local_length, job.local_tokens) == (251, 502)
