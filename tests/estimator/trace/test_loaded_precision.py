"""The precision in which a rehearsal's models are loaded, beside the library's own loading."""

import sys
from pathlib import Path

import pytest
import torch
import transformers

from vramtop.estimator.trace.rehearsal import rehearse

PROGRAM = """
import torch
from transformers import Qwen3ForSequenceClassification
model = Qwen3ForSequenceClassification.from_pretrained({folder!r}, num_labels=2, dtype=torch.{dtype}).cuda()
model.config.pad_token_id = 0
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(3):
    tokens = torch.ones(2, 16, dtype=torch.long, device="cuda")
    model(input_ids=tokens, labels=torch.zeros(2, dtype=torch.long, device="cuda")).loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_inside_a_head_has_the_precision_that_is_asked_for(program, tmp_path: Path, dtype: str) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 4096}
    config = transformers.Qwen3Config(num_attention_heads=4, num_key_value_heads=2, head_dim=64, **sizes)
    folder = tmp_path / "model"
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    kind = transformers.Qwen3ForSequenceClassification
    real = kind.from_pretrained(folder, num_labels=2, dtype=getattr(torch, dtype))
    found = rehearse([sys.executable, program(PROGRAM.format(folder=str(folder), dtype=dtype))])
    taken = sum(each.nbytes for each in real.parameters())
    assert found.answer.parameters == sum(each.numel() for each in real.parameters())
    assert found.answer.phases["backward"].components["weights"] == pytest.approx(taken, rel=0.02)
