"""The longest sample comes first in older scripts of LitGPT, before anything has accumulated."""

from typing import Any

from vramtop.estimator.budget import Peak
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job import job_from_mapping

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 2816,
    "vocab_size": 32000,
}


def peak(version: str, **training: Any) -> Peak:
    tables = {
        "model": {"config": CONFIG},
        "training": {"framework": "litgpt", "precision": "bf16", "micro_batch": 4, **training},
        "parallel": {"strategy": "fsdp1", "data_shard": 2},
        "lora": {"targets": ["q_proj", "v_proj"]},
        "software": {"litgpt": version},
    }
    return estimate(job_from_mapping(tables, where="test"), method="formula").peak


def below(found: Peak) -> int:
    assert found.allocated_range is not None
    return found.allocated_bytes - found.allocated_range.low_bytes


def above(found: Peak) -> int:
    assert found.allocated_range is not None
    return found.allocated_range.high_bytes - found.allocated_bytes


def test_less_memory_is_in_range_if_later_batches_may_be_shorter() -> None:
    """By no more than the gradients that had not accumulated, and only below."""
    old, new = peak("0.1", gradient_accumulation=8), peak("0.4", gradient_accumulation=8)
    assert abs(below(new) - above(new)) <= 1
    gradients = old.components.gradients
    assert 0.9 * gradients < below(old) - above(old) <= gradients + old.components.optimizer


def test_a_step_of_one_micro_batch_has_no_such_doubt() -> None:
    found = peak("0.1")
    assert abs(below(found) - above(found)) <= 1
