"""Saved activations compared with torch's own: blocks under torch.compile, norms, and adapters of peft."""

import pytest
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
