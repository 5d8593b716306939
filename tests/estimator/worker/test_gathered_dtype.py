"""FSDP2 that gathers in another type than the weights': closed form and traced step agree, phase by phase."""

import sys
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("checkpointing", ["full", pytest.param("none", marks=pytest.mark.slow)])
def test_bf16_weights_gathered_in_fp32(checkpointing: str) -> None:
    """AutoModel's ``mp_policy.param_dtype: float32``: activations are twice as large, shards and gradients are not."""

    def job(**parallel: Any) -> Any:
        training = {"precision": "bf16", "micro_batch": 4, "sequence_length": 256}
        tables = {"training": training | {"activation_checkpointing": checkpointing}}
        sharding = {"strategy": "fsdp2", "data_shard": 8, **parallel}
        return job_from_mapping({"model": {"config": LLAMA}, **tables, "parallel": sharding}, where="test")

    wide, narrow = job(param_dtype="fp32"), job()
    formula, traced = estimate(wide), estimate(wide, method="traced", python=sys.executable)
    for name in ("forward", "backward", "optimizer step"):
        computed, measured = formula.phase(name), traced.phase(name)  # type: ignore[arg-type]
        assert computed is not None
        assert measured is not None
        assert computed.allocated_bytes == pytest.approx(measured.allocated_bytes, rel=0.01)
    low = estimate(narrow)
    assert formula.peak.components.weights == low.peak.components.weights
    assert formula.peak.components.optimizer == low.peak.components.optimizer
    assert formula.peak.components.activations > 1.6 * low.peak.components.activations
