"""The replay of every framework with every loss, strategy and kind of tail runs, and releases what it allocates."""

import itertools
from typing import Any

import pytest
from mapped_blocks import mapped_blocks

from vramtop.estimator.formula.plan import make_plan
from vramtop.estimator.formula.rank_memory import RankMemory, rank_memory
from vramtop.estimator.formula.reserved.machine import Machine
from vramtop.estimator.formula.reserved.steps import TrainingRun
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings

SHAPE = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
NORMAL = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 4096}
SMALLEST = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 64}
"""So small that its head's gradient is left out."""
CONFIGS: list[dict[str, Any]] = [
    SHAPE | sizes | {"tie_word_embeddings": tied} for sizes in (NORMAL, SMALLEST) for tied in (False, True)
]
STRATEGIES: list[dict[str, Any]] = [
    {},
    {"strategy": "ddp", "data_replicate": 2},
    {"strategy": "fsdp2", "data_shard": 4},
    {"strategy": "fsdp2", "data_shard": 2, "context": 4, "reshard_after_forward": False},
    {"strategy": "fsdp2", "data_shard": 4, "fsdp_units": "model"},
    {"strategy": "fsdp1", "data_shard": 4},
    {"strategy": "fsdp1", "data_shard": 4, "cpu_offload": "all", "original_parameters": False},
    {"strategy": "fsdp1", "data_shard": 4, "fsdp_wrap_classes": ["LlamaMLP"], "fsdp_backward_prefetch": "post"},
    {"strategy": "fsdp1", "data_shard": 4, "fsdp_min_unit_parameters": 700_000},
    {"strategy": "zero2", "data_shard": 4},
    {"strategy": "zero3", "data_shard": 4},
    {"tensor": 2, "sequence_parallel": True},
    {"pipeline": 2},
]
ADAPTERS: tuple[dict[str, Any] | None, ...] = (None, None, {"targets": "all-linear", "quantization": "nf4"})
LOSSES = ("full", "chunked", "fused-linear", "unsloth", "log-probs", "fused-log-probs", "divergence")
CHECKPOINTING = ("none", "full", "selective")


def rank_of(config: dict[str, Any], lora: dict[str, Any] | None, **tables: Any) -> RankMemory:
    tables |= {"lora": lora} if lora else {}
    job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    arch = read_architecture(config, job.model.task, where="test")
    plan = make_plan(job, arch, count_parameters(arch))
    return rank_memory(plan, plan.distinct_stages[-1])


def check(rank: RankMemory, case: object) -> None:
    """Run three steps: the last two leave as many blocks as the first has left."""
    run = TrainingRun(rank, Machine(AllocatorSettings()))
    run.train(steps=1)
    after = sum(block.used for block in mapped_blocks(run.machine.allocator))
    try:
        run.train(steps=2)
    except (KeyError, ValueError) as error:
        pytest.fail(f"{error!r}: {case}")
    assert sum(block.used for block in mapped_blocks(run.machine.allocator)) == after, case


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_step_releases_what_it_allocates(framework: str) -> None:
    """All strategies with all losses, stepped after or in the backward pass, while what has fewer kinds takes turns."""
    kinds = (CHECKPOINTING, CONFIGS, (1, 1, 1, 1, 2), ADAPTERS)
    turns = zip(*map(itertools.cycle, kinds), strict=False)
    for parallel, loss, in_backward in itertools.product(STRATEGIES, LOSSES, (False, True)):
        checkpointing, config, accumulation, lora = next(turns)
        training = {
            "framework": framework,
            "sequence_length": 256,
            "loss": loss,
            "optimizer_in_backward": in_backward,
            "activation_checkpointing": checkpointing,
            "gradient_accumulation": accumulation,
        }
        check(rank_of(config, lora, training=training, parallel=parallel), (parallel, training, config, lora))
