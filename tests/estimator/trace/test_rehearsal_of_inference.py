"""A program that trains nothing: its peak, and the closed form of inference against it."""

import sys
from pathlib import Path

import pytest
from rehearsed import rehearse
from slow_cases import quick_every

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quick_rehearsals")
CONFIG = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
}
PROGRAM = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model(**{config})
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().cuda()
ids = torch.randint(1, 4096, ({batch}, 2048)).cuda()
with torch.inference_mode():
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False, pad_token_id=0)
"""


@pytest.mark.parametrize(
    ("family", "batch"),
    quick_every(2, [({"model_type": "llama"}, 4), ({"model_type": "mistral", "sliding_window": 256}, 1)]),
    ids=["llama", "window"],
)
def test_text_that_a_program_generates_takes_what_the_closed_form_says(family, batch, in_folder) -> None:
    """A layer with a window keeps all keys and values of the prompt: what it has is a view of them."""
    Path("generate.py").write_text(PROGRAM.format(config=CONFIG | family, batch=batch))
    found = rehearse([sys.executable, "generate.py"])
    training = {"mode": "inference", "micro_batch": batch, "sequence_length": 2048, "precision": "bf16"}
    expected = estimate(
        job_from_mapping({"model": {"config": CONFIG | family}, "training": training}, where="test"), environ={}
    ).peak
    peak = found.budget.peak
    assert (found.budget.job.training.mode, peak.phase) == ("inference", "forward")
    assert any("No optimizer stepped" in warning for warning in found.warnings)
    assert peak.allocated_bytes == pytest.approx(expected.allocated_bytes, rel=0.03)
    assert peak.reserved_bytes == pytest.approx(expected.reserved_bytes, rel=0.1)
