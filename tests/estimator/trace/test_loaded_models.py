"""Models of transformers that a rehearsal loads, beside the library's own loading."""

import sys
from pathlib import Path

import pytest
import torch
import transformers
from rehearsed import rehearse, trains
from slow_cases import first_quick, quick_every

STEP = """
tokens = torch.ones(2, 16, dtype=torch.long, device=dev)
net(input_ids=tokens, labels=tokens).loss.backward()
"""
PROGRAM = trains(
    STEP.replace("labels=tokens", "labels=tokens[:, 0]"),
    "net",
    """
from transformers import Qwen3ForSequenceClassification
net = Qwen3ForSequenceClassification.from_pretrained({folder!r}, num_labels=2, dtype=torch.{dtype}).cuda()
net.config.pad_token_id = 0
""",
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 4096}
    config = transformers.Qwen3Config(num_attention_heads=4, num_key_value_heads=2, head_dim=64, **sizes)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", first_quick(["float32", "bfloat16"]))
def test_a_model_inside_a_head_has_the_precision_that_is_asked_for(program, model_folder: Path, dtype: str) -> None:
    kind = transformers.Qwen3ForSequenceClassification
    real = kind.from_pretrained(model_folder, num_labels=2, dtype=getattr(torch, dtype))
    found = rehearse([sys.executable, program(PROGRAM.format(folder=str(model_folder), dtype=dtype))])
    taken = sum(each.nbytes for each in real.parameters())
    assert found.answer.parameters == sum(each.numel() for each in real.parameters())
    assert found.answer.phases["backward"].components["weights"] == pytest.approx(taken, rel=0.02)


SHARDED = trains(
    STEP + "assert bool(kept) == {patched}",
    "net",
    """
import types, transformers
from transformers.integrations import deepspeed as settings
settings.is_deepspeed_zero3_enabled = lambda: True
settings.deepspeed_config = lambda: {{"zero_optimization": {zero}, "fp16": {{"enabled": True}}}}
linear, kept = torch.nn.functional.linear, []
def without_views(data, weight, bias=None):
    kept.append(weight)
    return linear(data, weight, bias)
def init(module, config_dict_or_path):
    for each in module.parameters():
        assert each.dtype == torch.float16
        each.data = each.data.cuda()
zero = "deepspeed.runtime.zero."
names = ["deepspeed", "deepspeed.runtime", zero[:-1], zero + "linear", zero + "partition_parameters"]
sys.modules.update((name, types.ModuleType(name)) for name in names)
sys.modules[names[3]].zero3_linear_wrap, sys.modules[names[4]].Init = without_views, init
net = transformers.Qwen3ForCausalLM.from_pretrained({folder!r})
""",
).replace("net.to(dev)", "net")


@pytest.mark.parametrize(("zero", "patched"), quick_every(2, [({}, True), ({"memory_efficient_linear": False}, False)]))
def test_a_model_for_zero_3_is_split_as_it_is_loaded_and_its_layers_keep_no_views(program, model_folder, zero, patched):
    name = program(SHARDED.format(folder=str(model_folder), zero=zero, patched=patched))
    assert rehearse([sys.executable, name]).answer.trained


GROUPS = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False), torch.nn.Linear(1024, 1024, bias=False))
net = net.bfloat16().cuda()
masters = [each.detach().float() for each in net.parameters()]
for each in net.parameters():
    each._hp_mapping = None  # as DeepSpeed marks them
optimizer = torch.optim.AdamW(masters)
for step in range(20):
    net(torch.ones(8, 1024, dtype=torch.bfloat16, device="cuda")).float().mean().backward()
    for weight, master in zip(net.parameters(), masters):
        master.grad, weight.grad = weight.grad.float(), None
        optimizer.param_groups[0]["params"] = [master]
        optimizer.step()
        optimizer.param_groups[0]["params"] = []
        weight.data.copy_(master)
        master.grad = None
"""


def test_a_step_by_groups_of_parameters_is_one_step(program) -> None:
    found = rehearse([sys.executable, program(GROUPS)])
    parts, count = found.answer.phases["backward"].components, 2 * 1024 * 1024
    assert parts["weights"] + parts["optimizer"] == 14 * count
    assert "other_models" not in parts
    assert not found.warnings
    assert found.answer.trained == count


OLDER = trains(
    STEP,
    "Model.from_pretrained({folder!r}, **{given})",
    """
import transformers
class Config(transformers.Qwen3Config):
    @property
    def _attn_implementation(self):
        return self._attn_implementation_internal or "eager"
    @_attn_implementation.setter
    def _attn_implementation(self, value):
        self._attn_implementation_internal = value
class Model(transformers.Qwen3ForCausalLM):
    config_class = Config
    def __init__(self, config):
        assert config._attn_implementation_internal == {asked}
        config._attn_implementation = "sdpa"
        super().__init__(config)
""",
)


@pytest.mark.parametrize(
    ("asked", "given"),
    quick_every(
        3,
        [
            ("vramtop_fused_attention", {"use_flash_attention_2": True}),
            ("eager", {"attn_implementation": "eager"}),
            (None, {}),
        ],
    ),
)
def test_an_older_config_does_not_choose_the_attention(program, model_folder: Path, asked: str, given: dict) -> None:
    name = program(OLDER.format(folder=str(model_folder), asked=repr(asked), given=given))
    assert rehearse([sys.executable, name]).answer.trained


def test_experts_that_are_unpacked_as_they_are_read_take_their_own_type(program) -> None:
    before = """
from transformers import AutoModelForCausalLM, GptOssConfig, Mxfp4Config
GptOssConfig(vocab_size=512, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=64, num_local_experts=4, num_experts_per_tok=2, layer_types=None,
             quantization_config={"quant_method": "mxfp4"}).save_pretrained("model")
net = AutoModelForCausalLM.from_pretrained(
    "model", quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16, device_map="auto"
)
experts = net.model.layers[0].mlp.experts
assert experts.gate_up_proj.dtype == torch.bfloat16 and experts.gate_up_proj.shape == (4, 256, 512)
"""
    budget = rehearse([sys.executable, program(trains(STEP, "net", before))]).budget
    assert budget.phase("forward").components.weights > 2 * 2 * 4 * (256 * 512 + 256 * 256)
