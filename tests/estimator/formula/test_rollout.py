"""Text that is generated during training: its cache, ZeRO 3's gathered weights, and vLLM's share of the GPU."""

from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes

JOB: dict[str, Any] = {
    "model.id": "Qwen/Qwen2.5-0.5B",
    "training.micro_batch": 8,
    "training.sequence_length": 1024,
    "training.loss_length": 512,
    "training.loss": "chunked",
    "training.activation_checkpointing": "full",
}
GPU = find_gpu("h100-80gb")


def budget_of(changes: dict[str, Any], **more: Any) -> Budget:
    return estimate(with_changes(Job(), JOB | changes), **{"gpu": GPU, **more})


def test_generation_is_a_phase_with_the_cache_of_all_sequences() -> None:
    budget = budget_of({"rollout.micro_batches": 4})
    assert [phase.name for phase in budget.phases][:3] == ["loading", "generation", "forward"]
    generation = budget.phase("generation")
    assert generation is not None
    cache = 32 * 1024 * 24 * 2 * (2 * 64) * 2  # sequences, tokens, layers, K and V, 2 heads of 64, bf16
    prompts = cache // 2
    assert generation.components.activations in (cache, prompts)
    assert generation.components.gradients == 0
    assert Budget.from_json(budget.to_json()) == budget
    longest = budget_of({"rollout.micro_batches": 400}).phase("generation")
    assert longest is not None
    assert longest.components.activations in (100 * cache, 100 * prompts)


def test_without_a_rollout_nothing_is_generated() -> None:
    assert budget_of({}).phase("generation") is None


def test_vllm_beside_training_takes_its_share_of_the_gpu() -> None:
    alone = budget_of({})
    beside = budget_of({"rollout.engine": "vllm", "rollout.gpu_memory_utilization": 0.5})
    assert GPU is not None
    assert beside.peak.device_bytes - alone.peak.device_bytes == int(0.5 * GPU.total_bytes)
    assert beside.peak.components.weights > alone.peak.components.weights
    small = budget_of({"rollout.engine": "vllm"}, gpu=find_gpu("rtx-4090"))
    assert small.peak.device_bytes - budget_of({}, gpu=find_gpu("rtx-4090")).peak.device_bytes < 8 * GIB


def test_a_vllm_that_sleeps_leaves_the_step_alone() -> None:
    alone = budget_of({})
    asleep = budget_of({"rollout.engine": "vllm", "rollout.sleep": True})
    for name in ("forward", "backward", "optimizer step"):
        assert asleep.phase(name) == alone.phase(name)  # type: ignore[arg-type]
    assert asleep.peak.phase == "generation"


def test_an_unknown_gpu_is_named_where_vllm_takes_a_share_of_it() -> None:
    budget = budget_of({"rollout.engine": "vllm"}, gpu=None)
    assert any("an assumed GPU of 80 GiB" in sentence for sentence in budget.assumptions)


def test_zero_3_gathers_all_weights_to_generate_unless_told_not_to() -> None:
    sharded = {"model.id": "meta-llama/Llama-3.1-8B", "parallel.strategy": "zero3", "parallel.data_shard": 8}
    whole = budget_of({**sharded, "rollout.gather_weights": True}).phase("generation")
    parts = budget_of({**sharded, "rollout.gather_weights": False}).phase("generation")
    assert whole is not None
    assert parts is not None
    weights = 8_030_261_248 * 2
    assert whole.components.communication + whole.components.weights == pytest.approx(weights, rel=0.15)
    assert parts.components.communication < weights / 2


def test_a_share_that_is_smaller_than_the_weights_is_a_warning() -> None:
    tiny = budget_of({"model.id": "meta-llama/Llama-3.1-8B", "rollout.engine": "vllm"}, gpu=find_gpu("rtx-4090"))
    assert any("would not start" in warning for warning in tiny.warnings)
    assert not any("would not start" in warning for warning in budget_of({"rollout.engine": "vllm"}).warnings)
