"""Rehearsals of models whose checkpoints are packed by compressed-tensors."""

import sys

import pytest
from rehearsed import rehearse

pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

PACKED = """
import sys, torch, peft
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaConfig
four = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
packed = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": four}},
}
LlamaConfig(
    vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, dtype="bfloat16", quantization_config=packed,
).save_pretrained("model")
unpacked = CompressedTensorsConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained("model", device_map="cuda", quantization_config=unpacked)
model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
for step in range(3):
    tokens = torch.randint(0, 512, (2, 64)).cuda()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_weights_that_are_unpacked_while_they_are_read_take_what_they_are(program) -> None:
    pytest.importorskip("peft")
    found = rehearse([sys.executable, program(PACKED)])
    layer = 512 * (2 * 512 + 2 * 256) + 3 * 512 * 1024 + 2 * 512
    adapters = 2 * 8 * (512 + 512)
    weights = next(each for each in found.budget.phases if each.name == "forward").components.weights
    assert weights == 2 * (2 * layer + 2 * 512 * 512 + 512) + 4 * adapters
    assert found.answer.trained == adapters
