"""The count from the shape compared with models that the installed transformers builds on the meta device."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from model_configs import COMMON, DISTILBERT, EXPERTS, GPT2, LATENT, SMALL, T5
from slow_cases import quick_every

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.settings import Task
from vramtop.estimator.model.architecture import BlockRules
from vramtop.estimator.model.count_parameters import UNKNOWN_FAMILY_ERROR, count_parameters
from vramtop.estimator.model.families.decoders import PLAIN_MODELS
from vramtop.estimator.model.families.family import Family
from vramtop.estimator.model.families.registry import FAMILIES, GENERIC, family_of
from vramtop.estimator.model.find_config import BuiltInModel, built_in_models
from vramtop.estimator.model.inventory import Inventory
from vramtop.estimator.model.parameter_roles import NamedShape, ParameterKind, with_role
from vramtop.estimator.model.read_architecture import RULED_TASKS, read_architecture
from vramtop.estimator.trace.exact_parameter_count import InventoryAnswer, inventory_from_answer
from vramtop.estimator.trace.worker_process import convert_answer

Count = Callable[[Mapping[str, Any], str], Inventory]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("llama", {**COMMON, "attention_bias": True, "mlp_bias": True}),
    "llama tied, own head size": ("llama", {**COMMON, "tie_word_embeddings": True, "head_dim": 24}),
    "gemma untied": ("gemma", {**COMMON, "head_dim": 16, "tie_word_embeddings": False}),
    "qwen2 without a bias field": ("qwen2", {**COMMON, "attention_bias": False}),
    "qwen3 with biases": ("qwen3", {**COMMON, "attention_bias": True}),
    "sparse every second layer": ("qwen3_moe", {**COMMON, **EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": []}),
    "queries not compressed": ("deepseek_v2", {**COMMON, **LATENT, "q_lora_rank": None}),
    "latent with biases": ("deepseek_v3", {**COMMON, **LATENT, "attention_bias": True}),
    "gpt2, narrow MLP, untied": ("gpt2", {**GPT2, "n_inner": 96, "tie_word_embeddings": False}),
    "gpt_neox without biases": ("gpt_neox", {**COMMON, "attention_bias": False}),
    "t5, gated, head of its own, short decoder": (
        "t5",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 2},
    ),
    "bert untied": ("bert", {**COMMON, "tie_word_embeddings": False}),
    "distilbert untied": ("distilbert", {**DISTILBERT, "tie_word_embeddings": False}),
}
WITHOUT_RULE = {"albert", "bart", "deberta-v2", "longformer", "m2m_100", "mamba", "mbart", "pegasus"}
"""Families with models known by name of which only a rehearsal tells anything."""
SPARSE = {key: COMMON[key] for key in COMMON if key not in ("num_key_value_heads", "max_position_embeddings")}


@pytest.fixture
def count(ask_worker: Callable[[dict[str, Any]], dict[str, Any]]) -> Count:
    """Return the inventory of a model that transformers builds."""

    def exact(config: Mapping[str, Any], task: str) -> Inventory:
        request = {"op": "inventory", "config": dict(config), "task": task}
        return inventory_from_answer(convert_answer(ask_worker(request), InventoryAnswer))

    return exact


def same(shape: Inventory, exact: Inventory) -> bool:
    """Return True if both have the same parameters, whatever else the built model states."""
    of_shape, groups = (tuple(replace(group, quantized=None) for group in each.groups) for each in (shape, exact))
    same_rest = replace(exact, groups=(), buffers=(), source=shape.source) == replace(shape, groups=())
    return same_rest and groups == of_shape


@pytest.mark.parametrize("model", quick_every(16, built_in_models()), ids=lambda model: model.label)
def test_built_in_model_has_the_published_count_with_and_without_torch(model: BuiltInModel, count: Count) -> None:
    built = count(model.config, model.task)

    assert built.parameters == model.parameters
    if model.config["model_type"] in WITHOUT_RULE:
        with pytest.raises(CannotTellError, match="no rule for models of type"):
            read_architecture(model.config, model.task)
        return
    shape = count_parameters(read_architecture(model.config, model.task))
    if model.config["model_type"] in FAMILIES:
        assert shape.count == "exact"
        assert same(shape, built)
    else:
        low, high = UNKNOWN_FAMILY_ERROR
        assert shape.count == "approximate"
        assert low <= shape.parameters / model.parameters - 1 <= high


def test_every_known_family_has_a_small_test_model() -> None:
    assert SMALL.keys() == FAMILIES.keys() - PLAIN_MODELS.keys()  # which transformers does not have


@pytest.mark.parametrize("task", RULED_TASKS)
@pytest.mark.parametrize("family", quick_every(9, SMALL))
def test_every_head_of_every_family(family: str, task: Task, count: Count) -> None:
    config = {"model_type": family, **SMALL[family]}
    if task != "question-answering":
        config["num_labels"] = 3
    if task not in FAMILIES[family].tasks:
        with pytest.raises(CannotTellError, match=f"no {task} head"):
            count(config, task)
        with pytest.raises(InputError, match=rf"{family} model has no {task} head; set model\.task to one of"):
            count_parameters(read_architecture(config, task))
    elif task in FAMILIES[family].without_head:
        with pytest.raises(CannotTellError, match=f"no {task} head"):
            count(config, task)
        assert count_parameters(read_architecture(config, task)).count == "approximate"
    else:
        assert same(count_parameters(read_architecture(config, task)), count(config, task))


@pytest.mark.parametrize("variant", VARIANTS)
def test_biases_ties_and_sizes(variant: str, count: Count) -> None:
    family, fields = VARIANTS[variant]
    config = {"model_type": family, **fields}
    task = FAMILIES[family].tasks[0]

    assert same(count_parameters(read_architecture(config, task)), count(config, task))


@pytest.mark.parametrize("family", [name for name in SMALL if SMALL[name] is not GPT2 and "dim" not in SMALL[name]])
def test_missing_config_fields_have_transformers_defaults(family: str, count: Count) -> None:
    if family in ("t5", "mt5"):
        config = {"model_type": family, **T5}
    else:
        config = {"model_type": family, **SPARSE, **({"pad_token_id": 0} if family == "phi3" else {})}
    task = FAMILIES[family].tasks[0]

    assert same(count_parameters(read_architecture(config, task)), count(config, task))


@pytest.mark.parametrize(
    ("name", "task", "parameters"),
    [
        ("google-bert/bert-large-uncased", "feature-extraction", 335_141_888),
        ("google-bert/bert-base-uncased", "feature-extraction", 109_482_240),
        ("FacebookAI/roberta-base", "feature-extraction", 124_645_632),
        ("distilbert/distilbert-base-uncased", "feature-extraction", 66_362_880),
    ],
)
def test_published_counts_without_a_head(name: str, task: Task, parameters: int) -> None:
    model = next(model for model in built_in_models() if model.id == name)

    assert count_parameters(read_architecture(model.config, task)).parameters == parameters


def test_the_mlp_of_a_null_n_inner_is_four_times_the_hidden_size() -> None:
    config = {"model_type": "gptj", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": None, "vocab_size": 100}
    assert read_architecture(config).mlp_size == 256


def test_unknown_family_is_read_as_a_llama_and_reported_as_approximate() -> None:
    config = {"model_type": "brandnew", **COMMON}

    inventory = count_parameters(read_architecture(config))

    assert inventory.count == "approximate"
    assert inventory.parameters == count_parameters(read_architecture({"model_type": "llama", **COMMON})).parameters


def test_language_part_of_a_multimodal_config_is_counted_as_approximate() -> None:
    text = {"model_type": "gemma3_text", **COMMON, "head_dim": 16}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}

    inventory = count_parameters(read_architecture(config))

    assert inventory.count == "approximate"
    assert inventory.parameters == count_parameters(read_architecture(text)).parameters


def test_roles_split_a_mixture_of_experts() -> None:
    config = {"model_type": "deepseek_v2", **COMMON, **LATENT}
    inventory = count_parameters(read_architecture(config))

    experts = 2 * 8 * 3 * 64 * 32  # layers, experts, projections
    shared_and_dense = 2 * 3 * 64 * (2 * 32) + 1 * 3 * 64 * 160
    assert inventory.elements("expert") == experts
    assert inventory.elements("mlp") == shared_and_dense
    assert inventory.elements("router") == 2 * 8 * 64
    assert inventory.elements("embedding") == inventory.elements("head") == 1000 * 64
    assert inventory.elements("other") == 0
    assert all(group.layered for group in inventory.groups if group.role in ("expert", "attention", "mlp", "router"))
    assert not any(group.linear for group in inventory.groups if group.role in ("expert", "norm", "embedding"))


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("brandnew", GENERIC),
        (None, GENERIC),
        ("qwen9", replace(GENERIC, window_off_by_default=True)),
        ("gemma9_text", replace(GENERIC, rules=BlockRules(fp32_norm_scale=True))),
        ("glm4_moe", replace(GENERIC, expert_names=("gate_proj", "up_proj", "down_proj"))),
        ("bert", FAMILIES["bert"]),
    ],
)
def test_an_unknown_family_has_the_rules_of_its_relatives(model_type: str | None, expected: Family) -> None:
    assert family_of(model_type) == expected


@pytest.mark.parametrize(
    ("name", "kind", "role"),
    [
        ("model.embed_tokens.weight", "embedding", "embedding"),
        ("model.layers.*.self_attn.q_proj.weight", "linear", "attention"),
        ("model.layers.*.self_attn.q_proj.bias", "bias", "attention"),
        ("model.layers.*.self_attn.q_norm.weight", "norm", "norm"),
        ("model.layers.*.self_attn.sinks", "parameter", "attention"),
        ("model.layers.*.mlp.gate_proj.weight", "linear", "mlp"),
        ("model.layers.*.mlp.gate.weight", "parameter", "router"),
        ("model.layers.*.mlp.router.bias", "parameter", "router"),
        ("model.layers.*.mlp.shared_expert_gate.weight", "linear", "router"),
        ("model.layers.*.mlp.shared_experts.up_proj.weight", "linear", "mlp"),
        ("model.layers.*.mlp.experts.gate_up_proj", "parameter", "expert"),
        ("model.layers.*.block_sparse_moe.experts.*.w1.weight", "linear", "expert"),
        ("model.layers.*.block_sparse_moe.gate.weight", "linear", "router"),
        ("transformer.h.*.attn.c_proj.weight", "conv1d", "attention"),
        ("transformer.h.*.mlp.c_proj.weight", "conv1d", "mlp"),
        ("bert.encoder.layer.*.attention.output.dense.weight", "linear", "attention"),
        ("bert.encoder.layer.*.output.dense.weight", "linear", "mlp"),
        ("bert.pooler.dense.weight", "linear", "other"),
        ("cls.predictions.bias", "parameter", "head"),
        ("classifier.out_proj.weight", "linear", "head"),
        ("lm_head.weight", "linear", "head"),
        ("decoder.block.*.layer.*.EncDecAttention.q.weight", "linear", "attention"),
        ("decoder.block.*.layer.*.DenseReluDense.wi_0.weight", "linear", "mlp"),
    ],
)
def test_role_follows_from_the_name(name: str, kind: ParameterKind, role: str) -> None:
    group = with_role(NamedShape(name, (8, 8) if kind in ("linear", "conv1d") else (8,), 1, kind))

    assert group.role == role
    assert group.linear == (kind in ("linear", "conv1d"))
    assert group.layered == ("*" in name)
