"""The closed form compared with figures calculated by hand from its sources."""

from math import isclose
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

# embeddings and head, and per layer: q and o, k and v, three MLP matrices, two norms; the last norm
EMBEDDING = 2000 * 512
LAYER = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1408 + 2 * 512
PARAMETERS = 2 * EMBEDDING + 4 * LAYER + 512


def components(budget: Budget, phase: str) -> Any:
    return budget.phase(phase).components


@pytest.mark.parametrize(
    ("precision", "weights", "gradients", "states"),
    [("fp32", 4, 4, 8), ("bf16-mixed", 4, 4, 8), ("fp16-mixed", 4, 4, 8), ("bf16", 2, 2, 4), ("fp16", 2, 2, 4)],
)
def test_bytes_per_parameter_by_precision(llama_budget, precision, weights, gradients, states) -> None:
    step = components(llama_budget({"training.precision": precision}), "optimizer step")
    assert step.weights == weights * PARAMETERS
    assert step.gradients == gradients * PARAMETERS
    assert step.optimizer == states * PARAMETERS


def test_blocks_of_old_versions_keep_tables_of_all_positions(budget_of) -> None:
    config = llama_config(hidden=512, mlp=1408, layers=4, heads=8, kv_heads=4, vocab=2000)
    config |= {"model_type": "mistral", "max_position_embeddings": 4096}
    old, new = (
        components(
            budget_of(config, {"training.precision": "bf16", "software.transformers": version}), "loading"
        ).weights
        for version in ("4.41.2", "4.46.3")
    )
    assert old - new == 4 * 2 * 4096 * 64 * 2  # a sine and a cosine of each position and element of a head


UNQUANTIZED = EMBEDDING + 4 * 2 * 512 + 512
"""Embedding and norms, whose 8-bit states are in fp32."""
ROWS_AND_COLUMNS = 2 * (2000 + 512) + 4 * (2 * (512 + 512) + 2 * (512 + 256) + 3 * (512 + 1408) + 2 * 512) + 512


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        ("adamw-fused", 8 * PARAMETERS),
        ("sgd", 0),
        ("sgd-momentum", 4 * PARAMETERS),
        ("lion", 4 * PARAMETERS),
        ("none", 0),
        ("paged-adamw", 0),
        ("adamw-8bit", 8 * UNQUANTIZED + (PARAMETERS - UNQUANTIZED) * 2 * (1 + 4 / 256)),
        ("adafactor", 4 * ROWS_AND_COLUMNS),
    ],
)
def test_optimizer_states(llama_budget, optimizer: str, states: float) -> None:
    step = components(llama_budget({"training.optimizer": optimizer}), "optimizer step")
    assert step.optimizer == pytest.approx(states, rel=1e-6)


def test_foreach_adamw_copies_what_it_steps_and_fused_does_not(llama_budget) -> None:
    foreach = components(llama_budget({"training.optimizer": "adamw"}), "optimizer step")
    fused = components(llama_budget({"training.optimizer": "adamw-fused"}), "optimizer step")
    assert foreach.temporary - fused.temporary == 4 * PARAMETERS


def test_lora_trains_adapters_only(llama_budget) -> None:
    budget = llama_budget({"lora.rank": 8, "lora.targets": ["q_proj", "v_proj"], "training.precision": "bf16"})
    adapters = 4 * 8 * ((512 + 512) + (512 + 256))
    assert budget.model.trainable_parameters == adapters
    step = components(budget, "optimizer step")
    assert step.weights == 2 * PARAMETERS + 4 * adapters  # peft keeps adapters in fp32
    assert (step.gradients, step.optimizer) == (4 * adapters, 8 * adapters)


@pytest.mark.parametrize(("kind", "width"), [("nf4", 0.5625), ("nf4-double", 0.51587), ("int8", 1.0)])
def test_quantized_weights_are_the_blocks_linear_layers(llama_budget, kind: str, width: float) -> None:
    budget = llama_budget({"lora.quantization": kind, "lora.targets": "all-linear", "training.precision": "bf16"})
    linear = 4 * (LAYER - 2 * 512)
    adapters = budget.model.trainable_parameters
    expected = width * linear + 2 * (PARAMETERS - linear) + 4 * adapters
    assert expected < components(budget, "loading").weights < 1.01 * expected  # tables and whole blocks besides


def test_targets_of_which_some_match_nothing_are_a_warning(llama_budget) -> None:
    whole = llama_budget({"lora.targets": ["q_proj", "v_proj"]})
    partly = llama_budget({"lora.targets": ["q_proj", "query_key_value", "v_proj", "c_attn"]})
    assert partly.peak == whole.peak
    assert len([warning for warning in partly.warnings if "query_key_value, c_attn" in warning]) == 1
    assert not [warning for warning in whole.warnings if "lora.targets" in warning]


def test_targets_that_match_nothing_are_an_error_that_lists_the_layers(llama_budget) -> None:
    with pytest.raises(InputError, match=r"q_projj.*q_proj"):
        llama_budget({"lora.targets": ["q_projj"]})


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "states"),
    [
        ("ddp", 4, 4, 8),
        ("fsdp1", 4 / 8, 4 / 8, 8 / 8),
        ("fsdp2", 4 / 8, 4 / 8, 8 / 8),
        ("zero1", 2, 2 / 8, 12 / 8),  # DeepSpeed: 16-bit weights, an fp32 copy beside the states; the gradients of
        # other ranks' parts are freed at the end of the backward pass (seen with DeepSpeed 0.19.6 on CPU ranks)
        ("zero2", 2, 2 / 8, 12 / 8),
        ("zero3", 2 / 8, 2 / 8, 12 / 8),
    ],
)
def test_states_are_sharded_by_the_strategy(llama_budget, strategy, weights, gradients, states) -> None:
    ranks = "parallel.data_replicate" if strategy == "ddp" else "parallel.data_shard"
    budget = llama_budget({"parallel.strategy": strategy, ranks: 8, "training.optimizer": "adamw-fused"})
    step = components(budget, "optimizer step")
    for found, expected in ((step.weights, weights), (step.gradients, gradients), (step.optimizer, states)):
        assert isclose(found, expected * PARAMETERS, rel_tol=0.001)


def test_tensor_and_pipeline_parallelism_split_the_weights(llama_budget) -> None:
    whole = components(llama_budget(), "loading").weights
    tensor = components(llama_budget({"parallel.tensor": 2}), "loading").weights
    assert isclose(tensor, whole / 2, rel_tol=0.01)
    pipeline = components(llama_budget({"parallel.pipeline": 4}), "loading").weights
    assert pipeline == 4 * (EMBEDDING + LAYER) or pipeline == 4 * (EMBEDDING + LAYER + 512)
    with pytest.raises(InputError, match="4 layers"):
        llama_budget({"parallel.pipeline": 5})


def test_expert_parallelism_splits_experts_only(budget_of, tiny_llama: dict[str, Any]) -> None:
    mixtral = tiny_llama | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    ddp = {"parallel.strategy": "ddp", "parallel.data_replicate": 4}
    whole = components(budget_of(mixtral, ddp), "loading").weights
    split = components(budget_of(mixtral, ddp | {"parallel.expert": 4}), "loading").weights
    experts = 4 * 8 * 3 * 512 * 1408
    assert whole - split == 4 * experts * 3 // 4


def test_context_parallelism_halves_activations_and_shards_states(llama_budget) -> None:
    fsdp = {"parallel.strategy": "fsdp2", "parallel.data_shard": 4}
    one = llama_budget(fsdp)
    two = llama_budget(fsdp | {"parallel.context": 2})
    assert isclose(components(two, "forward").activations, components(one, "forward").activations / 2, rel_tol=0.001)
    assert isclose(components(two, "loading").weights, components(one, "loading").weights / 2, rel_tol=0.001)


def test_checkpointing_keeps_one_tensor_per_layer(llama_budget) -> None:
    base = {"training.precision": "bf16", "training.sequence_length": 1024, "training.loss": "fused-linear"}
    kept = components(llama_budget(base | {"training.activation_checkpointing": "full"}), "forward")
    none = components(llama_budget(base), "forward")
    selective = components(llama_budget(base | {"training.activation_checkpointing": "selective"}), "forward")
    around = 1024 * (8 + 2 * 512 + 4 + 2 * 512)  # token ids, last norm (Liger-Kernel's), the head's input
    assert kept.activations == 4 * 1024 * 2 * 512 + around
    assert kept.activations < selective.activations < none.activations


def test_gradient_accumulation_keeps_gradients_through_the_forward_pass(llama_budget) -> None:
    assert components(llama_budget(), "forward").gradients == 0
    accumulated = llama_budget({"training.gradient_accumulation": 4})
    assert components(accumulated, "forward").gradients == 4 * PARAMETERS


def test_fsdp_under_the_trainer_accumulates_unsharded_with_a_warning(llama_budget) -> None:
    fsdp = {"parallel.strategy": "fsdp2", "parallel.data_shard": 4, "training.gradient_accumulation": 2}
    budget = llama_budget(fsdp)
    assert components(budget, "forward").gradients == 2 * PARAMETERS  # accelerate reduces in the compute type
    stated = llama_budget(fsdp | {"parallel.reduce_dtype": "fp32"})
    assert components(stated, "forward").gradients == 4 * PARAMETERS
    assert any("no_sync" in warning for warning in budget.warnings)
    titan = llama_budget(fsdp | {"training.framework": "torchtitan"})
    assert components(titan, "forward").gradients < 4 * PARAMETERS / 3


def test_offloaded_activations_exist_of_one_block_at_a_time_whichever_blocks_train(llama_budget) -> None:
    """Every second block trains, so that blocks are counted in several runs."""
    offloaded = {"training.activation_offload": True, "training.sequence_length": 2048, "training.precision": "bf16"}
    some = {"training.trainable": ["model.layers.0", "model.layers.2"]}
    activations = components(llama_budget(offloaded | some), "backward").activations
    assert activations <= components(llama_budget(offloaded), "backward").activations


def test_offload_takes_states_off_the_device(llama_budget) -> None:
    fsdp = {"parallel.strategy": "fsdp2", "parallel.data_shard": 4, "parallel.cpu_offload": "all"}
    step = components(llama_budget(fsdp), "optimizer step")
    assert (step.weights, step.gradients, step.optimizer) == (0, 0, 0)


GPT2, CODEGEN = {"id": "gpt2"}, {"id": "Salesforce/codegen-350M-mono"}
DEBERTA = {"config": {"model_type": "deberta-v2", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128}}
DEBERTA["config"] |= {"num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("model", "version", "eager"),
    [
        *((GPT2, "4.40.2", True), (GPT2, "4.45.0", False), (GPT2, None, False)),
        *((CODEGEN, None, True), (CODEGEN, "5.24.0", False), (DEBERTA, None, True)),
    ],
)
def test_a_type_of_model_has_sdpa_since_a_version(model: dict[str, Any], version: str | None, eager: bool) -> None:
    tables = {"training": {"sequence_length": 1024}, "software": {"transformers": version}}
    figures = {}
    for attention in ("sdpa", "eager"):
        job = job_from_mapping({**tables, "model": {**model, "attention": attention}}, where="test")
        figures[attention] = estimate(job, method="formula").peak.allocated_bytes
    assert (figures["sdpa"] == figures["eager"]) is eager


def test_inference_has_no_backward_and_a_key_value_cache(llama_budget) -> None:
    budget = llama_budget({"training.mode": "inference", "training.precision": "bf16"})
    assert not [each for each in budget.assumptions if "loss" in each]
    assert [phase.name for phase in budget.phases] == ["loading", "forward"]
    cache = 2048 * 4 * 2 * (256 + 256)
    assert components(budget, "forward").activations >= cache
    assert budget.model.trainable_parameters == 0


def test_bytes_of_a_large_vocabulary(llama_budget) -> None:
    budget = llama_budget({"training.precision": "bf16", "training.sequence_length": 1024})
    logits = 1024 * 2000
    assert components(budget, "forward").logits == (2 + 4 + 4) * logits
    fused = {"training.precision": "bf16", "training.sequence_length": 1024, "training.loss": "fused-linear"}
    matrix = 2000 * 512  # elements of one chunk's gradient of the head's weight, summed in 2 bytes, cast to fp32 to add
    today = components(llama_budget(fused), "forward").logits
    assert 8 * matrix < today < 4 * logits + 8 * matrix
    before = components(llama_budget(fused | {"software.transformers": "4.54"}), "forward").logits
    assert 2 * matrix < before < 4 * logits + 2 * matrix


SMALL = llama_config(hidden=512, mlp=1408, layers=4, heads=8, vocab=2000)
CHOICES = {
    "training.precision": ["fp32", "bf16-mixed", "bf16", "fp16-mixed"],
    "training.optimizer": ["adamw", "adamw-fused", "adamw-8bit", "adafactor", "sgd", "lion", "muon", "none"],
    "training.activation_checkpointing": ["none", "full", "selective"],
    "training.loss": ["full", "chunked", "fused-linear"],
    "training.micro_batch": [1, 3],
    "training.gradient_accumulation": [1, 4],
    "training.activation_offload": [False, True],
    "training.optimizer_in_backward": [False, True],
    "training.mode": ["train", "inference"],
    "model.attention": ["sdpa", "eager", "flash_attention_2"],
    "lora.rank": [8],
    "lora.quantization": ["none", "nf4"],
    "parallel.strategy": ["none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "megatron-fsdp"],
    "parallel.data_shard": [1, 4],
    "parallel.data_replicate": [1, 2],
    "parallel.tensor": [1, 2],
    "parallel.pipeline": [1, 2],
    "parallel.context": [1, 2],
    "parallel.cpu_offload": ["none", "optimizer", "all"],
    "parallel.reshard_after_forward": [True, False],
}
SETTINGS = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in CHOICES.items()})


def quick(config: dict[str, Any], chosen: dict[str, Any]) -> Budget:
    tables: dict[str, dict[str, Any]] = {"model": {"config": config}}
    for dotted, value in chosen.items():
        table, _, key = dotted.partition(".")
        tables.setdefault(table, {})[key] = value
    job = job_from_mapping(tables, where="test")
    arch = read_architecture(config, "causal-lm")
    return closed_form(job, arch, count_parameters(arch))


@settings(max_examples=150)
@given(SETTINGS)
def test_every_budget_adds_up(chosen: dict[str, Any]) -> None:
    budget = quick(SMALL, chosen)
    peak = budget.peak
    for phase in budget.phases:
        assert all(size >= 0 for _, size in phase.components.items())
        assert phase.components.total_bytes <= budget.peak.components.total_bytes
    assert peak.allocated_bytes <= peak.reserved_bytes <= peak.device_bytes
    assert peak.low_bytes <= peak.device_bytes <= peak.high_bytes
    assert peak.allocated_bytes in peak.allocated_range
    assert peak.reserved_bytes in peak.reserved_range
    ranges = (peak.allocated_range, peak.reserved_range, peak.device_range)
    widths = [span.high_bytes - span.low_bytes for span in ranges]
    assert widths == sorted(widths)
    assert peak.allocated_bytes + budget.phases[-1].outside_bytes == peak.components.total_bytes


@settings(max_examples=100)
@given(SETTINGS)
def test_a_longer_sequence_or_a_larger_batch_never_takes_less(chosen: dict[str, Any]) -> None:
    """Searches rely on it."""
    small, *larger = (
        quick(SMALL, chosen | {"training.sequence_length": length, "training.micro_batch": batch}).peak
        for length, batch in ((512, 2), (1024, 2), (512, 3))
    )
    for large in larger:
        assert large.components.total_bytes >= small.components.total_bytes
        # other sizes fill segments differently, here to one or two of 20 MiB
        assert large.device_bytes >= small.device_bytes - (64 << 20)


def test_every_pipeline_stage_has_its_own_peak_and_all_layers_are_counted(tiny_llama: dict[str, Any]) -> None:
    arch = read_architecture({**tiny_llama, "num_hidden_layers": 8})
    tables = {"model": {"config": {}}, "training": {"gradient_accumulation": 8, "sequence_length": 4096}}
    spread = {"pipeline": 5, "data_shard": 2, "strategy": "fsdp2"}
    job = job_from_mapping({**tables, "parallel": spread}, where="test")
    budget = closed_form(job, arch, count_parameters(arch))
    assert [stage.layers for stage in stages(resolve_job(job), count_parameters(arch))] == [2, 2, 2, 1, 1]
    needs = [stage.device_bytes for stage in budget.stages]
    assert max(needs) == budget.peak.device_bytes
    assert needs[1] > needs[2] > needs[3]  # fewer micro-batches in flight, then fewer layers
    assert [need.device_bytes for need in budget.ranks] == [need for need in needs for _ in range(2)]
    alone = closed_form(
        job_from_mapping({**tables, "parallel": {"data_shard": 2}}, where="test"), arch, count_parameters(arch)
    )
    assert alone.stages == ()
    assert [need.device_bytes for need in alone.ranks] == [alone.peak.device_bytes] * 2
