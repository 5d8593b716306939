"""Rehearsals of programs with quantized weights and optimizer states, by bitsandbytes' own Python."""

import sys

import pytest
from rehearsed import rehearse, rehearse_beside_cpu

pytest.importorskip("torch")
pytest.importorskip("bitsandbytes")

QLORA = """
import sys, torch, peft
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig
dev = sys.argv[1]
LlamaConfig(vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=4).save_pretrained("model")
quantization = BitsAndBytesConfig({})
{}
model = peft.prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs=dict(use_reentrant=False))
model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
for step in range(3):
    tokens = torch.randint(0, 512, (2, 256)).to(dev)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOADED = """model = AutoModelForCausalLM.from_pretrained(
    "model", quantization_config=quantization, dtype=torch.bfloat16, device_map={"": dev}
)"""
BUILT = """import transformers
model = AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained("model"), dtype=torch.bfloat16)
model.save_pretrained("model")
"""
LINEAR = 512 * (2 * 512 + 2 * 256) + 3 * 512 * 1024
"""Weights of the linear layers of one of its two layers."""


def blocks(*sizes: int) -> int:
    """Return the bytes of tensors in the allocator's blocks of 512 bytes."""
    return sum(-(-size // 512) * 512 for size in sizes)


def packed(elements: int) -> int:
    """Return the bytes of a weight in 4 bits: scales of 64 are bytes, of which 256 share a scale, tables, an offset."""
    scales = elements // 64
    return blocks(elements // 2, scales, 16 * 4, -(-scales // 256) * 4, 256 * 4, 4)


def test_4_bit_weights_take_what_they_are_stored_in(program) -> None:
    four = "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True"
    told = "\nassert model.config._pre_quantization_dtype == torch.bfloat16  # flash attention casts to it"
    found = rehearse([sys.executable, program(QLORA.format(four, LOADED + told)), "cuda"])
    layer = [512 * 512, 512 * 256, 512 * 256, 512 * 512, *[512 * 1024] * 3]
    norms_and_embeddings = blocks(*[512 * 4] * 5, 4 * 512 * 512, 4 * 512 * 512)  # in fp32, as peft prepares them
    adapters = sum(blocks(8 * 4 * n, 8 * 4 * m) for n, m in
                   [(512, 512), (512, 256), (512, 256), (512, 512), (512, 1024), (512, 1024), (1024, 512)])  # fmt: skip
    weights = found.budget.phase("forward").components.weights
    assert weights == pytest.approx(2 * sum(map(packed, layer)) + norms_and_embeddings + 2 * adapters, rel=0.005)
    assert found.budget.model.parameters == 2 * LINEAR + 2 * 512 * 512 + 5 * 512 + 2 * 8 * (
        2 * 1024 + 2 * 768 + 3 * 1536
    )


def test_tied_embeddings_stay_tied_beside_quantized_weights(program) -> None:
    text = QLORA.replace("num_key_value_heads=4)", "num_key_value_heads=4, tie_word_embeddings=True)")
    rehearse_beside_cpu(
        program(text.format("load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16", BUILT + LOADED)), rel=0.001
    )


@pytest.mark.parametrize(
    "bits",
    [
        "load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16",
        pytest.param("load_in_8bit=True", marks=pytest.mark.slow),
    ],
)
def test_an_adapter_on_quantized_weights_takes_what_it_takes_on_the_cpu(program, bits) -> None:
    """The weights are those of a checkpoint that the program itself has saved, which the real run reads."""
    rehearse_beside_cpu(program(QLORA.format(bits, BUILT + LOADED)), rel=0.001)


def test_optimizer_states_in_8_bits_and_pages(program) -> None:
    text = """
import sys, torch, bitsandbytes
assert hasattr(bitsandbytes.functional.lib.cdequantize_blockwise_fp32, "restype")  # which unsloth asks for
net = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = bitsandbytes.optim.{}(net.parameters())
for _ in range(3):
    net(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    plain, paged = (rehearse([sys.executable, program(text.format(name))]) for name in ("AdamW8bit", "PagedAdamW8bit"))
    states = [each.budget.peak.components.optimizer for each in (plain, paged)]
    scales = blocks(1024 * 1024 // 256 * 4)
    assert states[0] - states[1] == 2 * 1024 * 1024
    assert states[0] == pytest.approx(2 * (1024 * 1024 + scales), abs=4096)
    assert any(each.startswith("paged optimizer states of 0.00 GiB are not in this figure") for each in paged.warnings)


def test_scales_and_zero_points_of_hqq_are_weights(program) -> None:
    pytest.importorskip("hqq")
    text = """
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
packed = BaseQuantizeConfig(nbits=4, group_size=64)
layer = HQQLinear(torch.nn.Linear(1024, 1024, bias=False), packed, compute_dtype=torch.bfloat16, device="cuda")
net = torch.nn.Sequential(layer, torch.nn.Linear(1024, 8, bias=False, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD(net[1].parameters())
for _ in range(3):
    net(torch.ones(4, 1024, device="cuda", dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    found = rehearse([sys.executable, program(text)])
    scales = 1024 * 1024 // 64 * 2
    weights = found.budget.phase("forward").components.weights
    assert weights == blocks(1024 * 1024 // 2, scales, scales, 8 * 1024 * 2)
    assert found.budget.model.parameters == 1024 * 1024 + 8 * 1024
