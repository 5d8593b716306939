"""Losses on log-probabilities: the formula against every vocabulary-wide tensor that torch allocates; rollouts."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.settings import Training

LLAMA = llama_config(hidden=512, mlp=1024, layers=2, heads=8, kv_heads=8, vocab=128_256, tie_word_embeddings=False)
JOB = {
    "model.config": LLAMA,
    "training.micro_batch": 4,
    "training.sequence_length": 1024,
    "training.activation_checkpointing": "full",
    "software.trl": "1.14",
}


@pytest.mark.parametrize(("trl", "forward", "backward"), [("0.14", 15.94, 11.91), ("1.14", 10.0, 15.91)])
def test_bytes_per_logit_are_those_that_torch_allocates(trl: str, forward: float, backward: float) -> None:
    """Counted by a dispatch mode while trl's lines ran: its whole log-softmax, and its selected log-probabilities."""
    job = {"training.loss": "log-probs", "training.reference_pass": True, "software.trl": trl}
    budget = budget_of(**{key.replace(".", "__"): value for key, value in job.items()})
    logits = 4 * 1024 * LLAMA["vocab_size"]  # type: ignore[operator]
    found = {phase.name: phase.components.logits / logits for phase in budget.phases}
    assert found["forward"] == pytest.approx(forward, rel=0.02)
    assert found["backward"] == pytest.approx(backward, rel=0.02)


def test_under_deepspeed_logits_stay_in_16_bits_and_go_row_by_row() -> None:
    """trl takes the log-softmax of 16-bit logits row by row; torch allocated so many bytes per logit."""
    sharding = {"parallel__strategy": "zero1", "parallel__data_shard": 2}
    budget = budget_of(training__loss="log-probs", training__reference_pass=True, **sharding)
    assert logits_of(budget) / (4 * 1024 * LLAMA["vocab_size"]) == pytest.approx(4.48, rel=0.02)  # type: ignore[operator]


def test_grpo_took_the_log_softmax_row_by_row_from_the_start() -> None:
    """trl 0.14's lines, rehearsed: 8.03 bytes per logit in both passes."""
    budget = budget_of(training__loss="log-probs", software__trl="0.14", rollout__engine="vllm")
    assert logits_of(budget) / (4 * 1024 * LLAMA["vocab_size"]) == pytest.approx(8.03, rel=0.02)  # type: ignore[operator]


def budget_of(**changes: Any) -> Budget:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return estimate(
        with_changes(Job(training=Training(precision="bf16-mixed")), {**JOB, **dotted}), gpu=find_gpu("h100-80gb")
    )


def logits_of(budget: Budget) -> int:
    return max(phase.components.logits for phase in budget.phases)


def test_only_the_completions_logits_count() -> None:
    whole = logits_of(budget_of(training__loss="log-probs"))
    half = logits_of(budget_of(training__loss="log-probs", training__loss_length=512))
    assert half == pytest.approx(whole / 2, rel=0.01)


def test_a_pair_takes_what_two_examples_take() -> None:
    pairs = budget_of(training__sequences_per_example=2, training__loss="log-probs", training__micro_batch=2)
    singles = budget_of(training__loss="log-probs")
    assert pairs.peak == singles.peak


def test_tiles_hold_a_part_of_the_logits_and_an_fp32_gradient_of_the_head() -> None:
    head = LLAMA["vocab_size"] * LLAMA["hidden_size"]  # type: ignore[operator]
    tiled = budget_of(training__loss="chunked", software__trl="1.16")
    backward = tiled.phase("backward")
    assert backward is not None
    tile, cast = 2 * 4096 * 32768, 2 * 32768 * 512
    inputs = 4 * 1024 * 512 * (4 + 4 + 4)  # the scored hidden states, their copy's gradient, and the fp32 sum
    assert logits_of(tiled) == pytest.approx(tile + cast + inputs + 4 * head, rel=0.01)
    adapters = budget_of(training__loss="chunked", software__trl="1.16", lora={"rank": 8})
    assert logits_of(adapters) == pytest.approx(tile + cast + inputs, rel=0.01)
    assert logits_of(tiled) < logits_of(budget_of(training__loss="full")) / 5
    at_head = adapters.phase("backward")
    assert at_head.components.temporary < 2 * head  # a tile of the head's weight is cast, not all of it


def test_liger_holds_the_logits_of_one_example() -> None:
    one = logits_of(budget_of(training__loss="fused-log-probs"))
    full = logits_of(budget_of(training__loss="log-probs"))
    assert one < 0.5 * full


def test_a_divergence_holds_many_copies_of_the_logits() -> None:
    assert logits_of(budget_of(training__loss="divergence")) == 68 * 4 * 1024 * 128_256


def test_a_reference_model_adds_its_weights_and_no_logits_of_its_own() -> None:
    weights = 4 * budget_of().model.parameters
    for loss, beside in (("chunked", True), ("chunked", False), ("log-probs", True)):
        settings = {"training__loss": loss, "training__reference_pass": beside, "software__trl": "1.16"}
        alone = budget_of(**settings)
        held = budget_of(**settings, other_models=[{"role": "reference"}])
        assert held.peak.components.weights - alone.peak.components.weights == weights
        assert held.peak.components.logits <= alone.peak.components.logits
        before = held.phase("forward")
        if not beside:  # it ran before the trained model, and left nothing
            assert before.components.total_bytes == alone.phase("forward").components.total_bytes + weights  # type: ignore[union-attr]


ROLLOUT: dict[str, Any] = {
    "model.id": "Qwen/Qwen2.5-0.5B",
    "training.micro_batch": 8,
    "training.sequence_length": 1024,
    "training.loss_length": 512,
    "training.loss": "chunked",
    "training.activation_checkpointing": "full",
}
GPU = find_gpu("h100-80gb")


def rollout_budget(changes: dict[str, Any], **more: Any) -> Budget:
    return estimate(with_changes(Job(), ROLLOUT | changes), **{"gpu": GPU, **more})


def test_generation_is_a_phase_with_the_cache_of_all_sequences() -> None:
    budget = rollout_budget({"rollout.micro_batches": 4})
    assert [phase.name for phase in budget.phases][:3] == ["loading", "generation", "forward"]
    generation = budget.phase("generation")
    cache = 32 * 1024 * 24 * 2 * (2 * 64) * 2  # sequences, tokens, layers, K and V, 2 heads of 64, bf16
    prompts = cache // 2
    assert generation.components.activations in (cache, prompts)
    assert generation.components.gradients == 0
    assert Budget.from_json(budget.to_json()) == budget
    longest = rollout_budget({"rollout.micro_batches": 400}).phase("generation")
    assert longest.components.activations in (100 * cache, 100 * prompts)


def test_without_a_rollout_nothing_is_generated() -> None:
    assert rollout_budget({}).phase("generation") is None


def test_vllm_beside_training_takes_its_share_of_the_gpu() -> None:
    alone = rollout_budget({})
    beside = rollout_budget({"rollout.engine": "vllm", "rollout.gpu_memory_utilization": 0.5})
    assert beside.peak.device_bytes - alone.peak.device_bytes == int(0.5 * GPU.total_bytes)
    assert beside.peak.components.weights > alone.peak.components.weights
    small = rollout_budget({"rollout.engine": "vllm"}, gpu=find_gpu("rtx-4090"))
    assert small.peak.device_bytes - rollout_budget({}, gpu=find_gpu("rtx-4090")).peak.device_bytes < 8 * GIB


def test_a_vllm_that_sleeps_leaves_the_step_alone() -> None:
    alone = rollout_budget({})
    asleep = rollout_budget({"rollout.engine": "vllm", "rollout.sleep": True})
    for name in ("forward", "backward", "optimizer step"):
        assert asleep.phase(name) == alone.phase(name)  # type: ignore[arg-type]
    assert asleep.peak.phase == "generation"


def test_an_unknown_gpu_is_named_where_vllm_takes_a_share_of_it() -> None:
    budget = rollout_budget({"rollout.engine": "vllm"}, gpu=None)
    assert any("an assumed GPU of 80 GiB" in sentence for sentence in budget.assumptions)


def test_zero_3_gathers_all_weights_to_generate_unless_told_not_to() -> None:
    sharded = {"model.id": "meta-llama/Llama-3.1-8B", "parallel.strategy": "zero3", "parallel.data_shard": 8}
    whole = rollout_budget({**sharded, "rollout.gather_weights": True}).phase("generation")
    parts = rollout_budget({**sharded, "rollout.gather_weights": False}).phase("generation")
    weights = 8_030_261_248 * 2
    assert whole.components.communication + whole.components.weights == pytest.approx(weights, rel=0.15)
    assert parts.components.communication < weights / 2


def test_a_share_that_is_smaller_than_the_weights_is_a_warning() -> None:
    tiny = rollout_budget({"model.id": "meta-llama/Llama-3.1-8B", "rollout.engine": "vllm"}, gpu=find_gpu("rtx-4090"))
    assert any("would not start" in warning for warning in tiny.warnings)
    assert not any("would not start" in warning for warning in rollout_budget({"rollout.engine": "vllm"}).warnings)
