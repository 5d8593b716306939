"""Jobs that differ in micro-batch and sequence length only share what does not depend on them, and nothing else."""

from typing import Any

from hypothesis import given, settings, strategies as st

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.reserved_memory import with_reserved_memory
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.formula.job_families import JobFamilies
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.job.settled import settled
from vramtop.estimator.model.architecture import Architecture
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
CONFIGS: tuple[dict[str, Any], ...] = (
    {**LLAMA, "num_key_value_heads": 2, "intermediate_size": 1408, "vocab_size": 32000},
    {**LLAMA, "model_type": "gemma3_text", "sliding_window": 128, "head_dim": 64, "intermediate_size": 1408}
    | {"num_key_value_heads": 2, "vocab_size": 32000},
    {"model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    | {"intermediate_size": 512, "vocab_size": 32000, "num_local_experts": 4, "num_key_value_heads": 2},
    {"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 32000},
)
LORA = {"rank": 8, "targets": "all-linear"}
TABLES: tuple[dict[str, Any], ...] = (
    {},
    {"training": {"framework": "litgpt"}, "lora": {**LORA, "dropout": 0.1}},
    {"training": {"framework": "torchtitan", "compile": True}, "parallel": {"tensor": 2}},
    {"training": {"framework": "megatron"}, "parallel": {"tensor": 2, "sequence_parallel": True}},
    {"training": {"activation_offload": True, "activation_checkpointing": "full"}},
    {"training": {"activation_checkpointing": "selective", "framework": "torchtitan"}},
    {"training": {"loss": "chunked", "framework": "torchtune"}},
    {"training": {"precision": "bf16-mixed", "trainable": ["*norm*"]}},
    {"lora": {**LORA, "quantization": "nf4"}},
    {"lora": {**LORA, "quantization": "int8"}, "model": {"attention": "eager"}},
    {"parallel": {"strategy": "fsdp2", "data_shard": 4, "context": 2}},
    {"parallel": {"strategy": "fsdp1", "data_shard": 4}},
    {"parallel": {"strategy": "zero2", "data_shard": 4}, "training": {"gradient_accumulation": 2}},
    {"parallel": {"strategy": "zero3", "data_shard": 4, "cpu_offload": "all"}},
    {"parallel": {"strategy": "ddp", "data_replicate": 2}, "saving": {}},
    {"parallel": {"pipeline": 2}, "training": {"framework": "torchtitan", "gradient_accumulation": 4}},
    {"rollout": {"engine": "transformers"}, "training": {"loss": "log-probs", "loss_length": 64}},
    {"rollout": {"engine": "vllm"}, "training": {"loss": "log-probs"}},
    {"training": {"mode": "inference"}},
)
SIZES = st.tuples(st.integers(1, 64), st.integers(1, 4096))


def estimate_of(job: Job, arch: Architecture, families: JobFamilies | None = None) -> Budget | str:
    """Return the budget, or the message of the error that there is."""
    try:
        with with_reserved_memory("guessed"):
            return closed_form(job, arch, count_parameters(arch), families=families)
    except VramtopError as error:
        return str(error)


@given(config=st.sampled_from(CONFIGS), tables=st.sampled_from(TABLES), sizes=st.lists(SIZES, min_size=2, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_job_has_the_budget_that_it_has_without_its_family(
    config: dict[str, Any], tables: dict[str, Any], sizes: list[tuple[int, int]]
) -> None:
    arch = read_architecture(config)
    families = JobFamilies()
    job = job_from_mapping({**tables, "model": {"config": config, **tables.get("model", {})}}, where="test")
    for batch, length in sizes:
        changed = with_changes(job, {"training.micro_batch": batch, "training.sequence_length": length})
        expected = estimate_of(changed, arch)
        assert estimate_of(changed, arch, families) == expected


def test_another_setting_makes_another_family() -> None:
    arch = read_architecture(CONFIGS[0])
    inventory, families = count_parameters(arch), JobFamilies()
    job = settled(job_from_mapping({"model": {"config": CONFIGS[0]}}, where="test"))
    for changes in (
        {},
        {"training.optimizer": "sgd"},
        {"training.precision": "fp32"},
        {"parallel.strategy": "fsdp2", "parallel.data_shard": 2},
        {"lora": {"rank": 8}},
        {"lora": {"rank": 16}},
        {"training.trainable": ["*norm*"]},
        {"training.gradient_accumulation": 2},
    ):
        changed = with_changes(job, changes)
        for each in (changed, with_changes(changed, {"training.micro_batch": 3})):
            assert closed_form(each, arch, inventory, families=families) == closed_form(each, arch, inventory)
    assert families.find(with_changes(job, {"training.micro_batch": 5})) is not None
    assert families.find(with_changes(job, {"training.optimizer": "lion"})) is None
    assert families.find(with_changes(job, {"training.trainable": ["*norm*"]})) is None
