"""Blocks under torch.compile: what the closed form says that they save, against torch's own min-cut partitioner."""

from typing import Any

import pytest
from partitioned_graphs import saved_bytes

from vramtop.estimator.formula.activations.saved_activations import saved_activations
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQUENCES, LENGTH = 2, 256
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "head_dim": 32,
    "vocab_size": 64,
}
BLOCKS = [
    ("llama", {"num_key_value_heads": 8}),
    ("llama", {"num_key_value_heads": 2, "intermediate_size": 1024}),
    ("qwen3", {"num_key_value_heads": 4}),
    ("gemma", {"num_key_value_heads": 8, "hidden_activation": "gelu_pytorch_tanh"}),
    ("mistral", {"num_key_value_heads": 4, "sliding_window": None}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes"), BLOCKS)
def test_a_compiled_block_saves_what_the_partitioner_keeps(family: str, sizes: dict[str, Any]) -> None:
    config = {"model_type": family, **SIZES, **sizes}
    one, two = (partitioned_bytes(config | {"num_hidden_layers": layers}) for layers in (1, 2))
    training = {"micro_batch": SEQUENCES, "sequence_length": LENGTH, "precision": "bf16", "compile": True}
    tables = {"model": {"config": config | {"num_hidden_layers": 2}}, "training": training}
    job = resolve_job(job_from_mapping(tables, where="test"))
    arch = read_architecture(job.model.config or {})
    saved = saved_activations(job, arch, stages(job, count_parameters(arch))[0])
    assert saved.layer_bytes == pytest.approx(two - one, rel=0.01)


def partitioned_bytes(config: dict[str, Any]) -> int:
    """Return the bytes of activations between the forward and the backward graph of a compiled model."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields, pad_token_id=0)
    model = transformers.AutoModel.from_config(settings, attn_implementation="sdpa").bfloat16()
    ids = torch.zeros(SEQUENCES, LENGTH, dtype=torch.long)
    return saved_bytes(model, lambda outputs: outputs.last_hidden_state.sum(), input_ids=ids, use_cache=False)
