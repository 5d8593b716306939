"""Blocks under torch.compile: what the closed form says that they save, beside torch's own."""

from typing import Any

import pytest

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
def test_a_compiled_block_saves_what_the_partitioner_keeps(
    family: str, sizes: dict[str, Any], token_bytes: int
) -> None:
    """Bytes that the min-cut partitioner of torch 2.13 kept for a token, between the two graphs of a block."""
    config = {"model_type": family, **SIZES, **sizes}
    training = {"micro_batch": SEQUENCES, "sequence_length": LENGTH, "precision": "bf16", "compile": True}
    tables = {"model": {"config": config | {"num_hidden_layers": 2}}, "training": training}
    job = resolve_job(job_from_mapping(tables, where="test"))
    arch = read_architecture(job.model.config or {})
    saved = saved_activations(job, arch, stages(job, count_parameters(arch))[0])
    assert saved.layer_bytes == pytest.approx(SEQUENCES * LENGTH * token_bytes, rel=0.01)
