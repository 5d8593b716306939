"""A resolved job: widths, shards and rules that follow from its settings."""

from typing import Any

import pytest

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import ResolvedJob, resolve_job


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
