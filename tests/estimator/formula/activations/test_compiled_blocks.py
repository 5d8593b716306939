"""Saved activations compared with torch's own: blocks under torch.compile, norms, and adapters of peft."""

from typing import Any

import peft
import pytest
import torch
import transformers
from model_configs import llama_config

from vramtop.estimator.formula.activations.block import norm_per_token
from vramtop.estimator.formula.activations.layer_context import layer_context
from vramtop.estimator.formula.activations.saved_activations import saved_activations
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

SEQUENCES, LENGTH = 2, 256
SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "head_dim": 32, "vocab_size": 64}
BLOCKS = [
    ("llama", {"num_key_value_heads": 8}, 8360),
    ("llama", {"num_key_value_heads": 2, "intermediate_size": 1024}, 10280),
    ("qwen3", {"num_key_value_heads": 4}, 9176),
    ("gemma", {"num_key_value_heads": 8, "hidden_activation": "gelu_pytorch_tanh"}, 8360),
    ("mistral", {"num_key_value_heads": 4, "sliding_window": None}, 8360),
]


@pytest.mark.parametrize(("family", "sizes", "token_bytes"), BLOCKS)
def test_a_compiled_block_saves_what_the_partitioner_keeps(family, sizes, token_bytes) -> None:
    """Bytes that the min-cut partitioner of torch 2.13 kept for a token, between the two graphs of a block."""
    config = {"model_type": family, **SIZES, **sizes}
    training = {"micro_batch": SEQUENCES, "sequence_length": LENGTH, "precision": "bf16", "compile": True}
    tables = {"model": {"config": config | {"num_hidden_layers": 2}}, "training": training}
    job = resolve_job(job_from_mapping(tables, where="test"))
    arch = read_architecture(job.model.config or {})
    saved = saved_activations(job, arch, stages(job, count_parameters(arch))[0])
    assert saved.layer_bytes == pytest.approx(SEQUENCES * LENGTH * token_bytes, rel=0.01)


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,  # in fp32 a GPU has no fused kernel for grouped heads, but a CPU has
}
TOKENS = 128


def saved_by_autograd(layers: int, targets: list[str], precision: str) -> int:
    """Bytes of distinct storages that one forward pass saves, parameters excepted."""
    fields = CONFIG | {"num_hidden_layers": layers}
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=targets, lora_dropout=0.0))
    adapted.train()
    weights = {weight.untyped_storage()._cdata for weight in adapted.parameters()}
    shapes = {tuple(weight.shape) for weight in adapted.parameters()}
    shapes |= {tuple(reversed(shape)) for shape in shapes}  # autocast's copies of weights, which are counted apart
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and tuple(tensor.shape) not in shapes:
            kept[storage._cdata] = storage
        return tensor

    mixed = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16-mixed")
    ids = torch.randint(0, 300, (1, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), mixed:
        adapted(input_ids=ids, labels=ids)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["q_proj", "o_proj", "gate_proj", "down_proj"]])
def test_a_layer_under_lora_saves_what_autograd_saves(targets: list[str], precision: str) -> None:
    measured = saved_by_autograd(4, targets, precision) - saved_by_autograd(3, targets, precision)
    job = job_from_mapping(
        {
            "model": {"config": CONFIG | {"num_hidden_layers": 4}},
            "training": {"precision": precision, "sequence_length": TOKENS},
            "lora": {"rank": 8, "targets": targets},
        },
        where="test",
    )
    arch = read_architecture(job.model.config or {})
    stage = stages(resolve_job(job), count_parameters(arch))[0]
    saved = saved_activations(resolve_job(job), arch, stage)
    assert saved.layer_bytes == pytest.approx(measured, rel=0.03)


ROWS, HIDDEN = 64, 256
NORMED = llama_config(hidden=HIDDEN, mlp=704, layers=2, heads=8, kv_heads=8, vocab=300)


def counted(framework: str, *, final: bool = True, compiled: bool = False, **software: str) -> float:
    tables = {"framework": framework, "precision": "bf16", "compile": compiled}
    job = job_from_mapping({"model": {"config": NORMED}, "training": tables, "software": software}, where="test")
    arch = read_architecture(NORMED, "causal-lm", where="test")
    resolved = resolve_job(job)
    stage = stages(resolved, count_parameters(arch))[0]
    return ROWS * norm_per_token(layer_context(resolved, arch, stage), HIDDEN, final=final)


@pytest.mark.parametrize(
    ("framework", "software", "widths"),
    [
        ("torchtitan", {"torch": "2.8", "torchtitan": "0.1"}, (4, 4)),  # torch's norm keeps two fp32 tensors
        ("torchtune", {"torch": "2.7"}, (4, 4)),
        ("torchtitan", {"torchtitan": "0.0.2"}, (4, 2)),  # an fp32 copy, and the normalized input
        ("torchtune", {"torch": "2.5"}, (4, 2)),
    ],
)
def test_norms_keep_what_autograd_keeps_of_their_operations(framework, software, widths) -> None:
    """On a CPU, which still runs the chain of operations that CUDA ran before torch 2.9."""
    assert counted(framework, **software) == pytest.approx(sum(widths) * ROWS * HIDDEN, rel=0.01)


def test_what_is_compiled_are_the_blocks_and_not_the_norm_behind_them() -> None:
    software = {"torch": "2.8", "torchtitan": "0.1"}
    kernel = counted("torchtitan", torch="2.9", torchtitan="0.2")
    assert counted("torchtitan", final=False, compiled=True, **software) == kernel
    assert counted("torchtitan", compiled=True, **software) == pytest.approx(4 * kernel, rel=0.02)
