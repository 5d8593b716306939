"""ZeRO in the closed form: its settings, each by the difference that it makes."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

CONFIG = llama_config(hidden=1024, mlp=2816, layers=8, heads=16, kv_heads=8, vocab=8000, tie_word_embeddings=False)
SMALL = {
    "reduce_bucket": 10_000_000,
    "prefetch_bucket": 5_000_000,
    "max_live_parameters": 40_000_000,
    "max_reuse_distance": 40_000_000,
}


def budget(stage: int, ranks: int, training: dict[str, Any], others: dict[str, Any], **zero: Any) -> Budget:
    tables = {
        "model": {"config": CONFIG},
        "training": {"micro_batch": 2, "sequence_length": 512, "precision": "bf16", **training},
        "zero": {**SMALL, **zero},
        **others,
        "parallel": {"strategy": f"zero{stage}", "data_shard": ranks, **others.get("parallel", {})},
    }
    return estimate(job_from_mapping(tables, where="test"))


def communication(stage: int, phase: str, **zero: Any) -> int:
    made = budget(stage, 8, {}, {}, **zero)
    return made.phase(phase).components.communication


def test_stage_3_keeps_its_bucket_and_its_gradients_all_through_the_step() -> None:
    larger = communication(3, "forward", reduce_bucket=30_000_000)
    assert larger - communication(3, "forward") == 2 * 20_000_000
    forward = budget(3, 8, {}, {}).phase("forward")
    assert forward.components.gradients > 0


def test_what_stage_3_gathers_follows_its_settings() -> None:
    most = communication(3, "forward", max_live_parameters=80_000_000)
    assert most - communication(3, "forward") == 2 * 40_000_000
    assert communication(3, "forward", prefetch_bucket=0) < communication(3, "forward")


def test_stage_3_steps_a_group_at_a_time() -> None:
    whole, grouped = (budget(3, 2, {}, {}, sub_group=size).phases[-1] for size in (None, 5_000_000))
    assert grouped.components.temporary < whole.components.temporary


def test_stage_1_has_freed_other_ranks_gradients_when_it_steps() -> None:
    gradients = [budget(stage, 8, {}, {}).phases[-1].components.gradients for stage in (1, 2)]
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("stage", [1, 2])
def test_16_bit_gradients_are_gone_when_the_optimizer_runs(stage: int) -> None:
    """An optimizer's copy of fp32 takes their place: no more than when the gradients were cast."""
    unfused, fused = (
        budget(stage, 2, {"optimizer": name}, {}, contiguous_gradients=False).phases[-1].allocated_bytes
        for name in ("adamw", "adamw-fused")
    )
    assert unfused == fused


@pytest.mark.parametrize("stage", [1, 2])
def test_16_bit_gradients_stay_where_a_second_group_of_the_trainer_shares_their_buffer(stage: int) -> None:
    unfused = {"optimizer": "adamw"}
    shared, apart = (budget(stage, 2, unfused, {}, contiguous_gradients=each).phases[-1] for each in (True, False))
    assert shared.components.temporary - apart.components.temporary == shared.components.gradients


def test_adapters_under_deepspeed_have_an_fp32_copy_and_fp32_states() -> None:
    step = budget(2, 4, {}, {"lora": {"rank": 16}}).phases[-1]
    trained = 8 * 16 * (2 * 1024 + 1024 + 512)
    assert step.components.optimizer == pytest.approx(12 * trained / 4, rel=1e-6)


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_weights_are_not_put_together_under_deepspeed(stage: int) -> None:
    """Only what is trained gets into flat buffers, so that no second copy of the rest stays in the cache."""
    made = budget(stage, 4, {}, {"lora": {"rank": 16}}, overlap_comm=False)
    assert made.peak.reserved_bytes < 1.25 * made.peak.allocated_bytes


def test_gathered_weights_stay_reserved_while_the_gpu_is_behind() -> None:
    """The CPU frees the weights of up to 16 blocks ahead of the GPU; these are 8 of 11.5 million weights, in bf16."""
    behind, waiting = (budget(3, 4, {}, {}, overlap_comm=each).peak for each in (True, False))
    assert behind.allocated_bytes == waiting.allocated_bytes
    assert behind.reserved_bytes - waiting.reserved_bytes > 6 * 11.5e6 * 2
