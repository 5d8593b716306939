"""The closed form's reserved memory against that of a traced step, whose tensors are those of the real modules."""

import sys
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

pytest.importorskip("torch")
pytest.importorskip("peft")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 3584,
    "vocab_size": 32000,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QLORA = {"targets": ["q_proj", "v_proj"], "quantization": "nf4"}
TRAINING = {"precision": "bf16", "activation_checkpointing": "full", "micro_batch": 8, "sequence_length": 2048}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "lora", "software"),
    [
        (LLAMA, {**QLORA, "kbit_preparation": True}, {}),
        (LLAMA, {**QLORA, "kbit_preparation": False}, {}),
        (MIXTRAL, {**QLORA, "kbit_preparation": False}, {"torch": "2.4", "transformers": "4.48"}),
    ],
    ids=["prepared", "not prepared", "separate experts"],
)
def test_quantized_layers_split_blocks_as_a_traced_step_does(
    config: dict[str, Any], lora: dict[str, Any], software: dict[str, str]
) -> None:
    tables = {"model": {"config": config}, "training": TRAINING, "lora": lora, "software": software}
    job = job_from_mapping(tables, where="test")
    peaks = [estimate(job, method=method, python=sys.executable, environ={}).peak for method in ("formula", "traced")]
    slack = [peak.reserved_bytes - peak.allocated_bytes for peak in peaks]
    assert peaks[0].reserved_bytes == pytest.approx(peaks[1].reserved_bytes, rel=0.06)
    assert slack[0] == pytest.approx(slack[1], abs=0.08 * peaks[1].reserved_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [LLAMA, {**LLAMA, "vocab_size": 2000, "num_key_value_heads": 8}], ids=["head", "block"]
)
def test_a_prompt_takes_what_a_traced_one_takes(config: dict[str, Any]) -> None:
    """Blocks of the key-value cache split what the blocks before have left."""
    training = {"mode": "inference", "precision": "bf16", "micro_batch": 8, "sequence_length": 2048}
    job = job_from_mapping(
        {"model": {"config": {**config, "num_hidden_layers": 8}}, "training": training}, where="test"
    )
    peaks = [estimate(job, method=method, python=sys.executable, environ={}).peak for method in ("formula", "traced")]
    assert peaks[0].allocated_bytes == pytest.approx(peaks[1].allocated_bytes, rel=0.04)
    assert peaks[0].reserved_bytes == pytest.approx(peaks[1].reserved_bytes, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_reserves_what_a_traced_engine_reserves(stage: int) -> None:
    """The weights that were loaded, and fp32 copies on the way, leave blocks that only smaller tensors can use."""
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


@pytest.mark.slow
def test_adapters_of_other_tools_than_peft_have_the_dtype_of_the_weights() -> None:
    lora = {"targets": "all-linear", "rank": 16}
    for framework in ("automodel", "torchtune", "transformers"):
        training = {"framework": framework, "precision": "bf16", "sequence_length": 512}
        tables = {"model": {"config": LLAMA}, "training": training, "lora": lora}
        job = job_from_mapping(tables, where="test")
        found = [estimate(job, method=method, python=sys.executable, environ={}) for method in ("formula", "traced")]
        states = [budget.phase("optimizer step").components.optimizer for budget in found]
        assert states[0] == pytest.approx(states[1], rel=0.01), framework
