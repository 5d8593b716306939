"""Saved activations of LitGPT's blocks compared with torch autograd, and the logits of its scripts."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.activations.saved_activations import saved_activations
from vramtop.estimator.formula.logits_and_loss import loss_bytes
from vramtop.estimator.formula.loss_bytes import LossBytes
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

HIDDEN, MLP, HEADS, LENGTH, RANK, VOCAB = 256, 704, 8, 128, 8, 32000
EVERYTHING = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def job(
    targets: list[str] | None,
    *,
    kv_heads: int = HEADS,
    software: dict[str, str] | None = None,
    quantization: str = "none",
    **training: Any,
) -> Job:
    config = llama_config(
        hidden=HIDDEN, mlp=MLP, layers=2, heads=HEADS, kv_heads=kv_heads, vocab=VOCAB, tie_word_embeddings=False
    )
    lora = {"lora": {"rank": RANK, "targets": targets, "quantization": quantization}} if targets else {}
    return job_from_mapping(
        {
            "model": {"config": config},
            "training": {"framework": "litgpt", "precision": "bf16", "sequence_length": LENGTH, **training},
            "software": software or {},
            **lora,
        },
        where="test",
    )


@pytest.mark.parametrize(
    ("targets", "kv_heads", "token_bytes"),
    [
        (None, 8, 14456),
        (None, 2, 13432),
        (["q_proj", "v_proj"], 8, 11288),
        (["q_proj", "v_proj"], 2, 9880),
        (EVERYTHING, 8, 14760),
        (EVERYTHING, 2, 13736),
    ],
)
def test_a_block_saves_what_autograd_saves(targets: list[str] | None, kv_heads: int, token_bytes: int) -> None:
    """Bytes of distinct storages that autograd kept for the operations of ``CausalSelfAttention`` and ``LLaMAMLP``."""
    stated = job(targets, kv_heads=kv_heads)
    arch = read_architecture(stated.model.config or {})
    stage = stages(resolve_job(stated), count_parameters(arch))[0]
    saved = saved_activations(resolve_job(stated), arch, stage)
    assert saved.layer_bytes == pytest.approx(LENGTH * token_bytes, rel=0.03)


def loss_of(stated: Job) -> LossBytes:
    arch = read_architecture(stated.model.config or {})
    return loss_bytes(resolve_job(stated), arch, stages(resolve_job(stated), count_parameters(arch))[0])


def test_logits_of_the_previous_micro_batch_exist_while_the_next_are_cast() -> None:
    """16-bit logits, their fp32 copies, and the fp32 ones that the script's variable holds."""
    logits = 512 * VOCAB
    loss = loss_of(job(["q_proj"], sequence_length=512))
    assert loss.forward_bytes == (4 + 2 + 4) * logits
    assert loss.backward_bytes == (4 + 4) * logits + 8 * logits // 4
    assert loss.retained_bytes == loss.retained_before_bytes == 4 * logits


def test_full_finetuning_cuts_the_last_position_off_by_a_copy() -> None:
    logits = 2 * 512 * VOCAB
    assert loss_of(job(None, sequence_length=512, micro_batch=2)).backward_bytes == 12 * logits


def test_early_versions_start_with_the_longest_sample() -> None:
    assert loss_of(job(["q_proj"], software={"litgpt": "0.1"})).retained_before_bytes == 0


def test_old_4_bit_layers_keep_their_inputs_and_those_of_the_micro_batch_before() -> None:
    targets, old = ["q_proj", "v_proj"], {"bitsandbytes": "0.42.0"}
    tokens, per_layer = 2 * LENGTH, 2 * (3 * HIDDEN + MLP)

    def forward(software: dict[str, str]) -> int:
        budget = estimate(job(targets, quantization="nf4", software=software, micro_batch=2))
        return budget.phase("forward").components.activations

    today = forward({})
    once = (2 * per_layer + 2 * HIDDEN) * tokens  # two blocks, and the head
    assert forward({**old, "litgpt": "0.1"}) - today == once
    assert forward({**old, "litgpt": "0.4"}) - today == 2 * once


def test_the_head_is_quantized_too_and_unpacked_twice_for_its_product() -> None:
    plain, quantized = (loss_of(job(["q_proj"], quantization=kind)) for kind in ("none", "nf4"))
    assert quantized.forward_bytes - plain.forward_bytes == 4 * VOCAB * HIDDEN - 4 * LENGTH * VOCAB
    kinds = ("none", "nf4")
    plain_weights, weights = (estimate(job(["q_proj"], quantization=k)).phases[0].components.weights for k in kinds)
    linear = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP) + VOCAB * HIDDEN
    assert plain_weights - weights == pytest.approx(linear * (2 - 0.5625), rel=0.001)


def test_the_head_is_adapted_if_it_is_named() -> None:
    without, with_head = (estimate(job(t)).model.trainable_parameters for t in (["q_proj"], ["q_proj", "lm_head"]))
    assert with_head - without == RANK * (HIDDEN + VOCAB)
