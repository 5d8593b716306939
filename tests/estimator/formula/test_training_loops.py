"""What the loops of frameworks keep, and what fused kernels and compiled blocks save: by hand from their sources."""

from typing import Any

import pytest

from vramtop.estimator.budget import Budget, Components
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes

TOKENS, HIDDEN, LAYERS, VOCABULARY = 2048, 512, 4, 2000
LOGITS = TOKENS * VOCABULARY
BF16 = {"training.precision": "bf16", "training.sequence_length": TOKENS}
SHARDED = {"parallel.strategy": "fsdp2", "parallel.data_shard": 8}


def phase(budget: Budget, name: Any) -> Components:
    """Components of one phase, which has to exist."""
    found = budget.phase(name)
    return found.components


@pytest.mark.parametrize("kernels", [["norm"], ["mlp"], ["norm", "mlp", "rope"]])
def test_fused_norms_save_no_fp32_copy_and_fused_mlps_no_activation(llama_budget, kernels: list[str]) -> None:
    plain = phase(llama_budget(BF16), "forward").activations
    fused = phase(llama_budget(BF16 | {"training.fused_kernels": kernels}), "forward").activations
    norm = (2 * LAYERS + 1) * 4 * HIDDEN  # input in fp32 and normalised: 6 bytes an element; the kernel's input: 2
    saved = (norm if "norm" in kernels else 0) + (2 * LAYERS * 1408 if "mlp" in kernels else 0)
    assert plain - fused == TOKENS * saved


def test_a_model_that_liger_does_not_patch_stays_as_it_is(budget_of, tiny_llama: dict[str, Any]) -> None:
    falcon = tiny_llama | {"model_type": "phi"}
    fused = BF16 | {"training.fused_kernels": ["norm", "mlp", "rope"]}
    assert budget_of(falcon, fused).peak == budget_of(falcon, BF16).peak


def test_a_fused_linear_loss_is_assumed_to_come_with_the_other_kernels(llama_budget) -> None:
    loss = BF16 | {"training.loss": "fused-linear"}
    assumed, stated = llama_budget(loss), llama_budget(loss | {"training.fused_kernels": []})
    assert assumed.peak.device_bytes < stated.peak.device_bytes < assumed.peak.high_bytes
    assert any("fused kernels" in sentence for sentence in assumed.assumptions)
    assert not any("fused kernels" in sentence for sentence in stated.assumptions)


@pytest.mark.parametrize(("batch", "parts"), [(1, 1), (1024, 4)])
def test_unsloths_loss_takes_parts_of_at_most_a_billion_logits(llama_budget, batch: int, parts: int) -> None:
    loss = BF16 | {"training.loss": "unsloth", "training.micro_batch": batch}
    beside = 2 * HIDDEN * batch * TOKENS + 2 * 2 * HIDDEN * VOCABULARY  # of the input, of the head, of a part
    assert phase(llama_budget(loss), "forward").logits == 2 * 2 * batch * LOGITS // parts + beside


def test_a_cross_entropy_in_place_keeps_one_copy_of_the_logits(llama_budget) -> None:
    fused = llama_budget(BF16 | {"training.fused_kernels": ["cross-entropy"]})
    assert phase(fused, "forward").logits == (2 + 4) * LOGITS
    assert phase(llama_budget(BF16), "backward").logits == 3 * 4 * LOGITS


def test_kept_outputs_are_there_until_the_next_ones_replace_them(llama_budget) -> None:
    plain, kept = llama_budget(BF16), llama_budget(BF16 | {"training.keep_outputs": True})
    for name in ("forward", "backward", "optimizer step"):
        assert phase(kept, name).logits - phase(plain, name).logits == 2 * LOGITS
    old = {"software.transformers": "4.40"}
    fp32 = llama_budget(BF16 | {"training.keep_outputs": True} | old)
    assert phase(fp32, "optimizer step").logits == 4 * LOGITS


def test_kept_outputs_may_hold_keys_and_values_where_blocks_are_checkpointed(llama_budget) -> None:
    settings = BF16 | {"training.keep_outputs": True}
    checkpointed = settings | {"training.activation_checkpointing": "full"}
    saved, kept = llama_budget(settings), llama_budget(checkpointed)
    plain = llama_budget(checkpointed | {"training.keep_outputs": False})
    more = (kept.peak.high_bytes - kept.peak.device_bytes) - (plain.peak.high_bytes - plain.peak.device_bytes)
    assert more == pytest.approx(2 * 2 * TOKENS * LAYERS * HIDDEN // 2, rel=0.05)  # 4 of the 8 heads have them
    assert any("keys and values" in sentence for sentence in kept.warnings)
    assert not any("keys and values" in sentence for sentence in saved.warnings)


def test_automodel_keeps_its_outputs_until_the_optimizer_steps(llama_budget) -> None:
    budget = llama_budget(BF16 | {"training.framework": "automodel"})
    assert phase(budget, "backward").logits == (3 * 4 + 2) * LOGITS
    assert phase(budget, "optimizer step").logits == 0


def test_automodel_checkpoints_the_parts_of_a_block_one_by_one(llama_budget) -> None:
    settings = BF16 | SHARDED | {"training.framework": "automodel", "training.activation_checkpointing": "full"}
    parts = phase(llama_budget(settings), "forward").activations
    whole = phase(llama_budget(settings | {"training.framework": "torchtune"}), "forward").activations
    last_norm = 6 * HIDDEN  # the fused one saves its input, torch's chain two fp32 tensors
    assert parts - whole == TOKENS * (LAYERS * (8 - 2) * HIDDEN - last_norm)


def test_torchtitan_held_its_predictions_before_june_2024(llama_budget) -> None:
    titan = BF16 | {"training.framework": "torchtitan", "training.activation_checkpointing": "full"}
    today = llama_budget(titan)
    assert phase(today, "optimizer step").logits == 0
    for software in ({"torchtitan": "0.0.1"}, {"torch": "2.3"}, {"torch": "2.4.0.dev20240528"}):
        held = llama_budget(titan | {f"software.{name}": version for name, version in software.items()})
        assert phase(held, "backward").logits - phase(today, "backward").logits == 4 * LOGITS
        assert phase(held, "optimizer step").logits == 4 * LOGITS
    freed = llama_budget(titan | {"software.torch": "2.5.0.dev20240613"})
    assert phase(freed, "optimizer step").logits == 0


def test_torchtitan_kept_its_last_block_gathered_before_july_2025(budget_of, tiny_llama) -> None:
    from vramtop.estimator.job.job_file.changes import job_from_mapping
    from vramtop.estimator.job.resolved_job import resolve_job

    def stays(**software: str) -> bool:
        tables = {"model": {"config": tiny_llama}, "training": {"framework": "torchtitan"}, "software": software}
        return resolve_job(
            job_from_mapping(tables | {"parallel": {"strategy": "fsdp2"}}, where="test")
        ).last_block_stays

    assert stays(torchtitan="0.1")
    assert stays(torch="2.7")
    assert not stays()
    assert not stays(torch="2.9")


def test_torchtune_expands_keys_so_that_fp32_attention_has_a_fused_kernel(llama_budget) -> None:
    """Its keys and values are those of all heads (``MultiHeadAttention``), so that sdpa writes no scores."""
    fp32 = {"training.framework": "torchtune", "training.precision": "fp32", "training.micro_batch": 1}
    once, twice = (phase(llama_budget(fp32 | {"training.sequence_length": n}), "forward") for n in (1024, 2048))
    assert twice.activations == 2 * once.activations
    assert once.logits == 1024 * VOCABULARY * (4 + 4)  # the logits are fp32 already


@pytest.mark.parametrize(
    ("model", "alone", "copied", "changes"),
    [
        (
            "bert-base-uncased",
            12,
            14,
            {"model.task": "masked-lm"},
        ),  # fp16 and fp32 log-probabilities, and the outputs in fp32, twice
        ("gpt2", 10, 12, {}),  # fp32 log-probabilities, and the outputs in fp32, twice
        ("gpt2", 10, 10, {"training.activation_checkpointing": "full"}),  # no parameters are looked for
    ],
)
def test_ddp_copies_the_outputs_of_the_trainer_s_model(model, alone, copied, changes) -> None:
    """``_DDPSink`` of torch's ``distributed.py``; bytes per logit, as these jobs' programs hold when rehearsed."""
    job = {"model.id": model, "training.micro_batch": 8, "training.precision": "fp16-mixed", **changes}
    ddp = {"parallel.strategy": "ddp", "parallel.data_replicate": 2}
    vocabulary = 30522 if "bert" in model else 50257
    for more, width in (({}, alone), (ddp, copied)):
        budget = estimate(with_changes(Job(), {**job, "training.sequence_length": 512, **more}))
        assert phase(budget, "forward").logits == width * 8 * 512 * vocabulary


def test_fused_experts_are_quantized_where_asked_for_and_exist_in_16_bits_while_they_multiply(
    budget_of, tiny_llama: dict[str, Any]
) -> None:
    mixture = tiny_llama | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    lora = {"lora.rank": 8, "lora.quantization": "nf4", "training.activation_checkpointing": "full"}
    plain, quantized, kept = (
        budget_of(mixture, BF16 | lora | changes)
        for changes in (
            {},
            {"lora.quantize_experts": True},
            {"lora.quantize_experts": True, "training.activation_checkpointing": "none"},
        )
    )
    experts = 8 * 3 * HIDDEN * 1408
    saved = phase(plain, "backward").weights - phase(quantized, "backward").weights
    assert saved == pytest.approx(LAYERS * experts * (2 - 0.5 - 4 / 64), rel=0.01)
    assert phase(quantized, "backward").temporary - phase(plain, "backward").temporary > 1.9 * experts
    assert phase(kept, "forward").activations > LAYERS * 2 * experts
    assert any("quantize" in each for each in plain.warnings) > any("quantize" in each for each in quantized.warnings)
