"""A resolved job: widths, shards and rules that follow from its settings."""

from typing import Any

import pytest

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import ResolvedJob, resolve_job


def resolved(**tables: dict[str, Any]) -> ResolvedJob:
    return resolve_job(job_from_mapping(tables, where="test"))


def test_a_resolved_job_does_not_change() -> None:
    with pytest.raises(AttributeError):
        resolved().trains = False  # type: ignore[misc]


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


@pytest.mark.parametrize(
    ("parallel", "shards"),
    [
        ({"strategy": "ddp"}, (1, 1, 1)),
        ({"strategy": "zero1"}, (1, 1, 8)),
        ({"strategy": "zero2"}, (1, 8, 8)),
        ({"strategy": "fsdp2"}, (8, 8, 8)),
        ({"strategy": "fsdp2", "context": 2}, (16, 16, 16)),
        ({"strategy": "megatron-fsdp", "sharding": "optim"}, (1, 1, 8)),
    ],
)
def test_ranks_over_which_states_are_sharded(parallel: dict[str, Any], shards: tuple[int, int, int]) -> None:
    found = resolved(parallel={"data_shard": 8, **parallel}).shards
    assert (found.weights, found.gradients, found.optimizer) == shards


def test_context_parallelism_splits_a_sequence() -> None:
    job = resolved(training={"micro_batch": 2, "sequence_length": 1001}, parallel={"context": 4})
    assert (job.local_length, job.local_tokens) == (251, 502)


@pytest.mark.parametrize(
    ("framework", "software", "own_units"),
    [
        ("transformers", {}, True),
        ("torchtitan", {}, True),
        ("torchtitan", {"torchtitan": "0.1"}, False),
        ("transformers", {"torchtitan": "0.1"}, True),
        ("torchtune", {}, False),
    ],
)
def test_embedding_and_head_are_units_of_their_own(framework: str, software: dict[str, str], own_units: bool) -> None:
    job = resolved(training={"framework": framework}, parallel={"strategy": "fsdp2"}, software=software)
    assert job.units_around_blocks == own_units
