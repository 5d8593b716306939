"""Rehearsals of models whose checkpoints are packed by GPTQ and AWQ, as transformers loads them with gptqmodel."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from rehearsed import rehearse

pytest.importorskip("torch")
pytest.importorskip("peft")
if find_spec("gptqmodel") is None:
    pytest.skip("gptqmodel is not installed", allow_module_level=True)

PACKED = """
import sys, peft, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig
dev, method, *real = sys.argv[1:]
packing = {"quant_method": method, "bits": 4, "group_size": 128}
packing |= {"desc_act": False, "sym": True} if method == "gptq" else {"zero_point": True, "version": "gemm"}
LlamaConfig(
    vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=8,
    num_key_value_heads=4, dtype="float16", quantization_config=packing,
).save_pretrained("model")
tensors = {name: torch.ones(512, 512) for name in ("model.embed_tokens.weight", "lm_head.weight")}
tensors |= {f"model.layers.0.{name}_layernorm.weight": torch.ones(512) for name in ("input", "post_attention")}
tensors["model.norm.weight"] = torch.ones(512)
for name, inputs, outputs in [
    ("self_attn.q_proj", 512, 512), ("self_attn.k_proj", 512, 256), ("self_attn.v_proj", 512, 256),
    ("self_attn.o_proj", 512, 512), ("mlp.gate_proj", 512, 1024), ("mlp.up_proj", 512, 1024),
    ("mlp.down_proj", 1024, 512),
]:
    name = f"model.layers.0.{name}"
    packed = (inputs // 8, outputs) if method == "gptq" else (inputs, outputs // 8)
    tensors[f"{name}.qweight"] = torch.zeros(packed, dtype=torch.int32)
    tensors[f"{name}.qzeros"] = torch.zeros(inputs // 128, outputs // 8, dtype=torch.int32)
    tensors[f"{name}.scales"] = torch.ones(inputs // 128, outputs)
    if method == "gptq":
        tensors[f"{name}.g_idx"] = torch.arange(inputs, dtype=torch.int32) // 128
tensors = {name: each.half() if each.is_floating_point() else each for name, each in tensors.items()}
save_file(tensors, "model/model.safetensors", metadata={"format": "pt"})
model = AutoModelForCausalLM.from_pretrained("model", device_map={"": dev}, dtype=torch.float16)
if dev == "cpu":
    held = {each.untyped_storage() for each in (*model.parameters(), *model.buffers())}
    print(sum(-(-each.nbytes() // 512) * 512 for each in held))
    sys.exit()
assert torch.cuda.memory_allocated() == int(*real), torch.cuda.memory_allocated()
model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
for _ in range(3):
    tokens = torch.randint(0, 512, (2, 64)).to(dev)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_packed_weights_take_what_they_take_on_the_cpu(program, method: str) -> None:
    name = program(PACKED)
    real = subprocess.run([sys.executable, name, "cpu", method], capture_output=True, text=True, check=True)
    found = rehearse([sys.executable, name, "cuda", method, real.stdout.split()[-1]])
    assert found.answer.trained == 2 * 8 * 512
    assert any(each.startswith("gptqmodel's kernels are not compiled here") for each in found.warnings)
