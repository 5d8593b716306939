"""What would explain a divergence: the true change is found from the memory it makes."""

from typing import Any

import pytest

from vramtop.estimator.explain import explain
from vramtop.estimator.job import Job
from vramtop.estimator.jobfile import job_from_mapping, with_changes
from vramtop.estimator.methods import estimate

TABLES: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "training": {"activation_checkpointing": "full", "micro_batch": 4, "sequence_length": 4096, "precision": "bf16"},
}


def job(**changes: Any) -> Job:
    return with_changes(job_from_mapping(TABLES, where="test"), changes)


SHARDED = {"parallel.strategy": "fsdp2", "parallel.data_shard": 8, "training.precision": "bf16-mixed"}


@pytest.mark.parametrize(
    ("read", "truth"),
    [
        ({}, {"training.activation_checkpointing": "none"}),
        (SHARDED, {"parallel.strategy": "ddp", "parallel.data_shard": 1, "parallel.data_replicate": 8}),
        ({"lora.rank": 16, "lora.quantization": "nf4"}, {"lora.quantization": "none"}),
        ({}, {"training.precision": "bf16-mixed"}),
        ({"training.optimizer": "adamw-fused"}, {"training.sequence_length": 2048}),
    ],
)
def test_the_setting_that_is_otherwise_is_among_the_explanations(read: dict[str, Any], truth: dict[str, Any]) -> None:
    asked = job(**read)
    observed = estimate(with_changes(asked, truth)).peak.device_bytes
    found = explain(asked, estimate(asked), observed, estimate)
    assert found
    assert truth.items() <= found[0].changes.items() or any(truth.items() <= e.changes.items() for e in found[:3])
    assert all(abs(e.off_bytes) <= 0.06 * observed for e in found)
    assert all(e.device_bytes - observed == e.off_bytes for e in found)


def test_two_changes_explain_what_none_alone_does() -> None:
    asked = job()
    truth = {"training.activation_checkpointing": "none", "training.precision": "fp32"}
    observed = estimate(with_changes(asked, truth)).peak.device_bytes
    found = explain(asked, estimate(asked), observed, estimate)
    assert any(truth.items() <= e.changes.items() for e in found)
    assert all(len(e.changes) == 2 and " and " in e.words for e in found)


def test_nothing_explains_what_no_setting_makes() -> None:
    asked = job()
    assert explain(asked, estimate(asked), 4000 * 2**30, estimate) == ()


def test_nothing_is_explained_by_what_is_farther_away_than_the_job_itself() -> None:
    asked = job()
    budget = estimate(asked)
    assert explain(asked, budget, budget.peak.device_bytes, estimate) == ()
