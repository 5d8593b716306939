"""Ranges hold what the same job takes with the versions or units that it may have and does not state."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

LLAMA = llama_config(hidden=1024, mlp=2816, layers=8, heads=8, kv_heads=8, vocab=32000)
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
FALCON = LLAMA | {"model_type": "falcon"}
STATED = {"torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0", "bitsandbytes": "0.49.0"}
FSDP2 = {"strategy": "fsdp2", "data_shard": 8}
DEEP = LLAMA | {"num_hidden_layers": 48}
SHORT = {"sequence_length": 128, "micro_batch": 1}
LORA = {"rank": 8, "targets": ["q_proj"]}


def budget(*, config: dict[str, Any] = LLAMA, training: dict[str, Any] | None = None, **tables: Any) -> Budget:
    given = {"sequence_length": 2048, "micro_batch": 4, "precision": "bf16", "varying_lengths": False}
    training = given | (training or {})
    return estimate(
        job_from_mapping({"model": {"config": config}, "training": training, **tables}, where="t"), environ={}
    )


def figures(found: Budget) -> tuple[int, ...]:
    return found.peak.allocated_bytes, found.peak.reserved_bytes, found.peak.device_bytes


def about(found: Budget, *words: str) -> list[str]:
    return [text for text in (*found.assumptions, *found.warnings) if all(word in text for word in words)]


@pytest.mark.parametrize(
    ("library", "old", "tables"),
    [
        ("transformers", "4.48.0", {"lora": LORA, "training": {"activation_checkpointing": "full"}}),
        ("transformers", "4.45.0", {"lora": LORA, "training": {"activation_checkpointing": "full"}}),
        ("transformers", "4.57.0", {"lora": LORA | {"quantization": "nf4"}, "config": MIXTRAL}),
        ("transformers", "4.57.0", {"lora": LORA | {"quantization": "nf4"}, "config": FALCON}),
        ("trl", "0.14.0", {"lora": LORA, "training": {"loss": "log-probs"}}),
        (
            "torchtitan",
            "0.1",
            {"parallel": {"strategy": "fsdp2", "data_shard": 8}, "training": {"framework": "torchtitan"}},
        ),
    ],
)
def test_an_unstated_version_may_be_an_older_one(library: str, old: str, tables: dict[str, Any]) -> None:
    newest = {**STATED, "torchtitan": "0.2.2"}
    stated = budget(software=newest, **tables)
    older = budget(software=newest | {library: old}, **tables)
    open_ = budget(software={name: newest[name] for name in newest if name not in (library, "torch")}, **tables)
    assert open_.peak.components == stated.peak.components
    assert figures(older) != figures(stated) == figures(open_)
    assert older.peak.device_bytes in open_.peak.device_range
    assert older.peak.allocated_bytes in open_.peak.allocated_range
    assert not about(stated, "not stated")
    assert about(open_, f"version of {library} is not stated", "GiB")


def test_what_hardly_matters_widens_nothing() -> None:
    """On one token there are hardly any logits, and a dense model's blocks are as they were."""
    short = {"training": {"sequence_length": 16, "micro_batch": 1}, "lora": LORA}
    assert budget(**short).peak == budget(software=STATED, **short).peak
    assert not about(budget(**short), "not stated")


def test_a_version_that_was_long_out_of_use_is_not_considered() -> None:
    new = budget(lora=LORA, software={"torch": "2.13.0"})
    assert not about(new, "transformers is not stated", "4.45")
    assert about(budget(lora=LORA, software={"torch": "2.5.0"}), "transformers is not stated")


def test_older_peft_makes_adapters_in_the_type_of_the_weights() -> None:
    software = {"torch": "2.4.0", "transformers": "4.45.0", "trl": "0.11.0"}
    open_ = budget(lora={"rank": 8}, software=software)
    older = budget(lora={"rank": 8}, software=software | {"peft": "0.11"})
    assert older.peak.device_bytes in open_.peak.device_range
    assert about(open_, "peft is not stated", "GiB less")
    assert not about(budget(lora={"rank": 8, "quantization": "nf4"}, software=software), "peft is not stated")


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_a_class_to_wrap_that_is_not_understood_may_leave_the_model_whole(strategy: str) -> None:
    parallel = {"strategy": strategy, "data_shard": 8}
    usual, unknown, whole, known = (
        budget(config=DEEP, parallel=parallel | more, software=STATED, training=SHORT)
        for more in (
            {},
            {"fsdp_wrap_classes": ["LlamaSomething"]},
            {"fsdp_units": "model"},
            {"fsdp_wrap_classes": ["LlamaDecoderLayer"]},
        )
    )
    assert unknown.peak.device_bytes == usual.peak.device_bytes < whole.peak.device_bytes
    assert whole.peak.device_bytes in unknown.peak.device_range
    assert whole.peak.device_bytes not in usual.peak.device_range
    (warning,) = (text for text in unknown.warnings if "LlamaSomething" in text)
    assert "more" in warning
    assert known.peak == usual.peak


def test_what_fsdp2_does_with_four_bit_weights_is_said_and_widens_nothing() -> None:
    quantized = {"config": DEEP, "lora": LORA | {"quantization": "nf4"}, "software": STATED, "training": SHORT}
    found = budget(parallel=FSDP2, **quantized)
    whole = budget(parallel={"strategy": "ddp", "data_replicate": 8}, **quantized)
    assert about(found, "quant_storage", "uint8")
    assert whole.peak.allocated_bytes not in found.peak.allocated_range
    assert not about(budget(parallel={"strategy": "fsdp1", "data_shard": 8}, **quantized), "quant_storage")


def test_gradients_under_fsdp2_may_be_reduced_after_each_micro_batch() -> None:
    training = SHORT | {"gradient_accumulation": 2}
    found, reduced, stated = (
        budget(config=DEEP, parallel=FSDP2 | more, training=training, software=software)
        for more, software in (({}, {}), ({"sync_every_micro_batch": True}, {}), ({}, {"transformers": "5.20"}))
    )
    assert reduced.peak.device_bytes < found.peak.device_bytes
    assert reduced.peak.device_bytes in found.peak.device_range
    assert about(found, "accelerate", "1.11")
    assert not about(stated, "accelerate", "1.11")


def test_lengths_that_are_not_known_are_said_and_widen_nothing() -> None:
    unknown, fixed = budget(training={"varying_lengths": None}), budget(training={"varying_lengths": False})
    assert unknown.peak == fixed.peak
    assert about(unknown, "If batch lengths vary")
    assert not about(budget(training={"varying_lengths": None, "framework": "torchtitan"}), "batch lengths vary")
