"""The closed form's reserved memory against that of a traced step, whose tensors are those of the real modules."""

import sys

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
@pytest.mark.parametrize("prepared", [True, False])
def test_quantized_layers_split_blocks_as_a_traced_step_does(prepared: bool) -> None:
    pytest.importorskip("bitsandbytes")
    tables = {"model": {"config": LLAMA}, "training": TRAINING, "lora": {**QLORA, "kbit_preparation": prepared}}
    job = job_from_mapping(tables, where="test")
    peaks = [estimate(job, method=method, python=sys.executable, environ={}).peak for method in ("formula", "traced")]
    slack = [peak.reserved_bytes - peak.allocated_bytes for peak in peaks]
    assert peaks[0].reserved_bytes == pytest.approx(peaks[1].reserved_bytes, rel=0.06)
    assert slack[0] == pytest.approx(slack[1], abs=0.08 * peaks[1].reserved_bytes)
