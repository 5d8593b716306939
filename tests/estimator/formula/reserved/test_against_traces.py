"""The closed form's reserved memory against that of a traced step, whose tensors are those of the real modules."""

import sys
from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

pytest.importorskip("torch")
pytest.importorskip("peft")
LLAMA = llama_config(hidden=1024, mlp=3584, layers=4, heads=8, kv_heads=2, vocab=32000)
QLORA = {"targets": ["q_proj", "v_proj"], "quantization": "nf4"}
TRAINING = {"precision": "bf16", "activation_checkpointing": "full", "micro_batch": 8, "sequence_length": 2048}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "lora"),
    [
        (LLAMA, {**QLORA, "kbit_preparation": True}),
        (LLAMA, {**QLORA, "kbit_preparation": False}),
    ],
    ids=["prepared", "not prepared"],
)
def test_quantized_layers_split_blocks_as_a_traced_step_does(config: dict[str, Any], lora: dict[str, Any]) -> None:
    pytest.importorskip("bitsandbytes")
    tables = {"model": {"config": config}, "training": TRAINING, "lora": lora}
    job = job_from_mapping(tables, where="test")
    peaks = [estimate(job, method=method, python=sys.executable, environ={}).peak for method in ("formula", "traced")]
    slack = [peak.reserved_bytes - peak.allocated_bytes for peak in peaks]
    assert peaks[0].reserved_bytes == pytest.approx(peaks[1].reserved_bytes, rel=0.06)
    assert slack[0] == pytest.approx(slack[1], abs=0.08 * peaks[1].reserved_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_reserves_what_a_traced_engine_reserves(stage: int) -> None:
    """The weights that were loaded, and fp32 copies on the way, leave blocks that only smaller tensors can use."""
    pytest.importorskip("deepspeed")
    training = {
        "precision": "bf16-mixed",
        "micro_batch": 2,
        "sequence_length": 1024,
        "activation_checkpointing": "full",
    }
    parallel = {"strategy": f"zero{stage}", "data_shard": 4}
    config = {**LLAMA, "num_hidden_layers": 12}
    job = job_from_mapping({"model": {"config": config}, "training": training, "parallel": parallel}, where="test")
    peaks = [estimate(job, method=method, python=sys.executable, environ={}).peak for method in ("formula", "traced")]
    assert peaks[0].reserved_bytes == pytest.approx(peaks[1].reserved_bytes, rel=0.12)
