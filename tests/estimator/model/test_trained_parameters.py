"""Patterns of parameter names, applied to counted parameters, compared with the names of the real models."""

from typing import Any

import pytest
import torch
import transformers
from model_configs import llama_config

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.settings import Lora
from vramtop.estimator.job.trainable import trainable_rules
from vramtop.estimator.model.adapters import adapter_groups_by_rule
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.model.trained_parameters import (
    near_names,
    patterns_of_count,
    trained_by_count,
    trained_parameters,
)

LLAMA = llama_config(hidden=64, mlp=160, layers=12, heads=4, kv_heads=2, vocab=100, tie_word_embeddings=False)
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "deepseek": LLAMA
    | {"model_type": "deepseek_v3", "n_routed_experts": 4, "moe_intermediate_size": 32, "first_k_dense_replace": 2}
    | {"num_key_value_heads": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "bert": LLAMA | {"model_type": "bert", "max_position_embeddings": 64, "tie_word_embeddings": True},
    "t5": {"model_type": "t5", "vocab_size": 100, "d_model": 64, "d_ff": 128, "num_layers": 3, "num_heads": 4}
    | {"d_kv": 16, "num_decoder_layers": 2},
}
TASKS = {"bert": "masked-lm", "t5": "seq2seq-lm"}
CLASSES = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "seq2seq-lm": transformers.AutoModelForSeq2SeqLM,
}
PATTERNS = [
    ["lm_head"],
    ["*bias"],
    ["*norm*"],
    ["*.1.*"],
    ["*.1?.*", "lm_head"],
    ["!*embed*", "!*.0.*"],
    ["mlp", "!*.11.*"],
    ["decoder"],
    ["*.1*", "!*.10.*"],
    ["!*"],
]


def real_names(name: str) -> list[tuple[set[str], int]]:
    """Every parameter of the real model: its names, and its elements."""
    fields = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = CLASSES[TASKS.get(name, "causal-lm")].from_config(config)
    found: dict[int, tuple[set[str], int]] = {}
    for own, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), (set(), parameter.numel()))[0].add(own)
    return list(found.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_trained_parameters_are_those_of_the_real_model(name: str) -> None:
    inventory = count_parameters(read_architecture(CONFIGS[name], TASKS.get(name, "causal-lm")))
    parameters = real_names(name)
    for patterns in PATTERNS:
        rules = trainable_rules(patterns)
        trained = trained_parameters(inventory, rules)
        last = {
            index: max((at for at, rule in enumerate(rules.compiled) if any(map(rule.search, names))), default=None)
            for index, (names, _) in enumerate(parameters)
        }
        expected = sum(
            elements
            for index, (_, elements) in enumerate(parameters)
            if (rules.otherwise if (at := last[index]) is None else rules.rules[at][1])
        )
        assert trained.count == expected or trained.guessed, patterns
        assert not trained.guessed or name in ("t5", "deepseek")


def test_blocks_that_train_alike_are_runs_and_the_first_one_is_known() -> None:
    inventory = count_parameters(read_architecture(LLAMA, "causal-lm"))
    trained = trained_parameters(inventory, trainable_rules(["*.layers.3.mlp.*", "*.layers.1?.*", "lm_head"]))
    assert [run.count for run in trained.runs(0, 12)] == [3, 1, 6, 2]
    assert [bool(run.trained) for run in trained.runs(0, 12)] == [False, True, False, True]
    assert (trained.first_block, trained.before_blocks, trained.unmatched) == (3, False, ())


def test_a_pattern_that_matches_nothing_is_named_with_names_that_resemble_it() -> None:
    inventory = count_parameters(read_architecture(LLAMA, "causal-lm"))
    assert trained_parameters(inventory, trainable_rules(["lm_haed", "mlp"])).unmatched == ("lm_haed",)
    assert "lm_head" in near_names(inventory, "lm_haed")
    assert "model.layers.*.self_attn.q_proj" in near_names(inventory, "!*q_porj*")


@pytest.mark.parametrize(
    "patterns", [["lm_head"], ["*.layers.1?.*", "lm_head"], ["*norm*"], ["self_attn"], ["!*embed*"], ["!*"]]
)
def test_the_number_of_trained_parameters_alone_finds_the_usual_choices(patterns: list[str]) -> None:
    inventory = count_parameters(read_architecture(LLAMA, "causal-lm"))
    wanted = trained_parameters(inventory, trainable_rules(patterns))
    found = patterns_of_count(inventory, wanted.count)
    assert found is not None
    assert trained_parameters(inventory, trainable_rules(found)).trained == wanted.trained
    by_count = trained_by_count(inventory, wanted.count, None, adapters=False)
    assert (by_count.count, by_count.inferred) == (wanted.count, found)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"trainable": ["lm_head"]}, "6,400 of the model's own parameters are trained: lm_head."),
        (
            {"trainable_parameters": 6400},
            "6,400 of the model's own parameters are trained: lm_head.weight (the only usual choice with that count).",
        ),
    ],
)
def test_what_is_trained_and_how_that_is_known_is_an_assumption(training: dict[str, Any], said: str) -> None:
    job = job_from_mapping({"model": {"config": LLAMA}, "training": training}, where="test")
    assert said in estimate(job, method="formula").assumptions


def test_a_number_that_no_usual_choice_has_scales_what_was_read() -> None:
    inventory = count_parameters(read_architecture(LLAMA, "causal-lm"))
    rules = trainable_rules(["lm_head"])
    trained = trained_by_count(inventory, 123456, rules, adapters=False)
    assert trained.scale == pytest.approx(123456 / inventory.parameters)
    assert trained_by_count(inventory, 6400, rules, adapters=False) is trained_parameters(inventory, rules)
    assert trained_by_count(inventory, inventory.parameters, None, adapters=False) is None


def test_parameters_beside_a_frozen_model_are_those_of_the_programs_own_layers() -> None:
    inventory = count_parameters(read_architecture(LLAMA, "causal-lm"))
    trained = trained_by_count(inventory, 20485, trainable_rules(["!*"]), adapters=False)
    assert (trained.count, trained.outside, trained.scale) == (0, 20485, 1.0)
    both = trained_by_count(inventory, 6400 + 999, trainable_rules(["lm_head"]), adapters=False)
    assert (both.count, both.outside, both.scale) == (6400, 999, 1.0)
    beside_adapters = trained_by_count(inventory, 999, None, adapters=True)
    assert (beside_adapters.count, beside_adapters.outside) == (0, 999)


def test_adapters_on_layers_of_a_family_whose_names_are_not_known_are_on_all_linear_layers() -> None:
    inventory = count_parameters(read_architecture(LLAMA | {"model_type": "own"}, "causal-lm"))
    every = list(adapter_groups_by_rule(inventory, Lora(rank=8, targets="all-linear")))
    assert list(adapter_groups_by_rule(inventory, Lora(rank=8, targets=["w1", "c_attn"]))) == every
    assert list(adapter_groups_by_rule(inventory, Lora(rank=8, targets=["w1", "q_proj"]))) == every
    assert list(adapter_groups_by_rule(inventory, Lora(rank=8, targets=["q_proj"]))) != every
