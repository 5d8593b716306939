"""FSDP1 in the closed form; ``test_closed_form_matrix`` compares it with traces of the wrapped model."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

LAYERS, HIDDEN, TOKENS = 32, 1024, 2 * 1024
LLAMA = llama_config(hidden=HIDDEN, mlp=2816, layers=LAYERS, heads=16, kv_heads=4, vocab=500)
BLOCK = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 4 + 3 * HIDDEN * 2816 + 2 * HIDDEN
AROUND = 2 * 500 * HIDDEN + HIDDEN


def budget(parallel: dict[str, Any] | None = None, **tables: Any) -> Budget:
    training = {"precision": "bf16", "micro_batch": 2, "sequence_length": 1024, **tables.pop("training", {})}
    job = {
        "model": tables.pop("model", {"config": LLAMA}),
        "training": training,
        "parallel": {"strategy": "fsdp1", "data_shard": 4} | (parallel or {}),
        **tables,
    }
    return estimate(job_from_mapping(job, where="test"), method="formula")


def gathered(parallel: dict[str, Any]) -> float:
    """Return the elements, of two bytes, that are gathered while blocks run forward beside the root's and one block."""
    one, two = (budget({"data_shard": 4, **changes}).phases[1].components.communication for changes in (parallel, {}))
    return (one - two) / 2


def test_units_by_size_by_class_and_one_unit() -> None:
    assert gathered({"fsdp_units": "model"}) == (LAYERS - 1) * BLOCK
    assert gathered({"fsdp_wrap_classes": ["LlamaDecoderLayer"]}) == 0
    assert gathered({"fsdp_min_unit_parameters": BLOCK + AROUND + LAYERS * BLOCK}) == (LAYERS - 1) * BLOCK
    rest = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 4 + 2 * HIDDEN  # of each block goes to the root's unit
    assert gathered({"fsdp_wrap_classes": ["LlamaMLP"]}) == (LAYERS - 1) * rest
    assert gathered({"fsdp_wrap_classes": ["LlamaSparseMoeBlock"]}) == (LAYERS - 1) * rest  # a part of a block


def test_a_head_that_trains_alone_sends_gradients_through_all_blocks() -> None:
    """Head and embedding are views of the root's flat parameter, which needs a gradient."""
    head, embedding, block = (
        budget(training={"trainable": [name]}) for name in ("lm_head", "model.embed_tokens", "model.layers.31")
    )
    activations = [found.phases[1].components.activations for found in (head, embedding, block)]
    assert activations[0] > 0.99 * activations[1] > 10 * activations[2]
    assert head.phases[3].components.gradients == 2 * AROUND // 4
    assert block.phases[3].components.gradients == 2 * BLOCK // 4
    assert any("root unit" in sentence for sentence in head.assumptions)
    assert not any("root unit" in sentence for sentence in block.assumptions)


def test_reentrant_checkpoints_around_frozen_units_keep_inputs_and_gradients() -> None:
    """As on real ranks (``tests/estimator/worker/parallel``): a tensor of each block and its gradient, at the end."""
    lora = {"rank": 8, "targets": ["q_proj"]}
    before, since = (
        budget(training={"activation_checkpointing": "full"}, lora=lora, software={"transformers": version}).phase(
            "backward"
        )
        for version in ("4.51.0", "4.52.0")
    )
    more = before.components.activations - since.components.activations
    assert (LAYERS - 2) * 2 * HIDDEN * TOKENS <= more <= LAYERS * 2 * HIDDEN * TOKENS


def test_what_is_gathered_ahead_of_the_gpu_stays_reserved() -> None:
    limited, ahead = (budget({"limit_all_gathers": limit}).peak for limit in (True, False))
    assert limited.allocated_bytes == ahead.allocated_bytes
    assert limited.reserved_bytes < ahead.reserved_bytes


def test_gradients_are_reduced_in_the_compute_type_under_accelerate() -> None:
    mixed = {"precision": "bf16-mixed", "activation_checkpointing": "full", "sequence_length": 64}
    absent, low, high = (
        budget({"fsdp_units": "model"} | ({"reduce_dtype": dtype} if dtype else {}), training=mixed).phase("backward")
        for dtype in (None, "bf16", "fp32")
    )
    assert absent == low
    assert absent != high


def test_a_class_to_wrap_that_is_not_known_is_a_warning() -> None:
    for name, warned in (("LlamaDecoderLayer", False), ("Zebra", True)):
        warnings = budget({"fsdp_wrap_classes": [name]}).warnings
        assert any(f"the contents of {name} are" in warning for warning in warnings) == warned


def test_a_quantized_model_is_whole_on_each_gpu_before_it_is_sharded() -> None:
    """transformers 4.57 puts each weight on the host once it is quantized, 5 does not."""
    now, before = (
        budget(
            {"data_shard": 8},
            model={"id": "llama-3.1-70b"},
            training={"activation_checkpointing": "full"},
            lora={"rank": 8, "targets": "all-linear", "quantization": "nf4"},
            software={"transformers": version},
        )
        for version in ("5.23", "4.57")
    )
    embedding_and_head = 2 * 128_256 * 8192
    whole = 0.5 * (70_553_706_496 - embedding_and_head) + 2 * embedding_and_head
    assert 1.15 * whole > now.phases[0].components.weights > whole
    assert 0.25 * whole > before.phases[0].components.weights > whole / 8
    assert now.peak.phase == "loading"
    assert before.peak.phase == "backward"
    assert now.peak.reserved_bytes > now.peak.allocated_bytes == now.phases[0].allocated_bytes
    assert now.peak.device_bytes - now.peak.reserved_bytes == before.peak.device_bytes - before.peak.reserved_bytes
    told = ["whole quantized model on its GPU" in " ".join(each.warnings) for each in (now, before)]
    assert told == [True, False]


@pytest.mark.parametrize(
    ("model", "ranks", "rehearsed"),
    [
        ("meta-llama/Llama-3.1-70B", 32, 62.96),
        ("Qwen/Qwen3-30B-A3B", 8, 74.11),
        ("mistralai/Mixtral-8x7B-v0.1", 8, 118.1),
    ],
)
def test_inputs_of_reductions_stay_reserved_until_the_gpu_is_known_to_be_done(model, ranks, rehearsed) -> None:
    """The rehearsals' figures, in GiB: 9 to 14 % more than if each input came back at once."""
    training = {"micro_batch": 1, "sequence_length": 2048, "precision": "bf16-mixed", "optimizer": "adamw-fused"}
    training["activation_checkpointing"] = "full"
    found = budget({"data_shard": ranks}, model={"id": model}, training=training)
    assert found.peak.reserved_bytes == pytest.approx(rehearsed * GIB, rel=0.02)


def test_a_block_is_gathered_ahead_while_the_attention_of_the_next_one_runs_backward() -> None:
    """By the first adapter that ran in a block; not ahead at all by units in reentrant checkpoints."""
    wide = LLAMA | {"intermediate_size": 32 * HIDDEN}
    block = BLOCK + 3 * HIDDEN * (32 * HIDDEN - 2816)
    found = []
    for targets, version in ((["down_proj"], "5.0"), (["q_proj"], "5.0"), (["down_proj"], "4.51")):
        lora = {"rank": 8, "targets": targets}
        training = {"activation_checkpointing": "full", "micro_batch": 8}
        whole = budget(model={"config": wide}, training=training, lora=lora, software={"transformers": version})
        backward = whole.phase("backward")
        found.append(backward.components.communication)
    assert found[0] - found[1] == pytest.approx(2 * block, rel=0.01)
    assert found[1] == found[2]
