"""The closed form's reserved memory against that of a traced step, whose tensors are those of the real modules."""

import sys
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file import job_from_mapping

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
